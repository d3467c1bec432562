# What a wheel has (pyproject.toml), as a component of its own: cmake --install BUILD --component python --prefix FOLDER.
# The program lies in the package, as do the texts and maps that the module and the program read.
set(of_wheel COMPONENT python EXCLUDE_FROM_ALL)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/python/kvlathe DESTINATION . ${of_wheel} PATTERN __pycache__ EXCLUDE)
install(TARGETS kvlathe_native LIBRARY DESTINATION kvlathe ${of_wheel})
install(FILES ${CMAKE_BINARY_DIR}/python/kvlathe/_native.pyi DESTINATION kvlathe ${of_wheel})
install(TARGETS kvlathe RUNTIME DESTINATION kvlathe/bin ${of_wheel})
install(FILES ${CMAKE_SOURCE_DIR}/share/calibration.txt ${CMAKE_SOURCE_DIR}/share/sample.txt
  DESTINATION kvlathe/share/kvlathe ${of_wheel})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/share/chat_templates ${CMAKE_SOURCE_DIR}/share/maps DESTINATION kvlathe/share/kvlathe
  ${of_wheel})
