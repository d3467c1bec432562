# What `cmake --install` installs, and a Debian package of it:
#   cmake --build --preset release --target kvlathe && cpack --config build/release/CPackConfig.cmake -B build/release
# All libraries are those of Debian 12, so dpkg-shlibdeps (package dpkg-dev) finds what the program depends on.
# docs/deploy.md says what lies where.
include(GNUInstallDirs)

# Installing builds nothing: who installs the program need not build the tests.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)

set(deploy ${CMAKE_SOURCE_DIR}/deploy)
install(TARGETS kvlathe)
install(FILES ${CMAKE_SOURCE_DIR}/share/calibration.txt ${CMAKE_SOURCE_DIR}/share/sample.txt
  DESTINATION ${CMAKE_INSTALL_DATADIR}/kvlathe)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/share/chat_templates ${CMAKE_SOURCE_DIR}/share/maps DESTINATION ${CMAKE_INSTALL_DATADIR}/kvlathe)
install(FILES ${deploy}/haproxy/haproxy.cfg DESTINATION ${CMAKE_INSTALL_DATADIR}/kvlathe/haproxy)
install(PROGRAMS ${deploy}/replicas.sh ${deploy}/ranks.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/kvlathe)

# The library for other programs, its headers and how CMake and pkg-config find it (docs/library.md). The Debian
# package is of the program alone. Who builds the program has the library too, so that it can be installed.
include(CMakePackageConfigHelpers)
set(development COMPONENT development)
set(packagedir ${CMAKE_INSTALL_LIBDIR}/cmake/kvlathe)
add_dependencies(kvlathe kvlathe_shared)
install(TARGETS kvlathe_shared EXPORT kvlatheTargets LIBRARY ${development} NAMELINK_COMPONENT development)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/kvlathe DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} ${development})
install(EXPORT kvlatheTargets NAMESPACE kvlathe:: DESTINATION ${packagedir} ${development})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/kvlatheConfig.cmake.in ${CMAKE_BINARY_DIR}/kvlatheConfig.cmake
  INSTALL_DESTINATION ${packagedir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/kvlatheConfigVersion.cmake COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH pc_to_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(${CMAKE_CURRENT_LIST_DIR}/kvlathe.pc.in ${CMAKE_BINARY_DIR}/kvlathe.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/kvlatheConfig.cmake ${CMAKE_BINARY_DIR}/kvlatheConfigVersion.cmake
  DESTINATION ${packagedir} ${development})
install(FILES ${CMAKE_BINARY_DIR}/kvlathe.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig ${development})

# Manual pages and completions are what the program says of itself, so installing runs it. Debian has the pages compressed,
# and keeps a folder for completions of packages apart from that of the administrator, which zsh alone names otherwise.
set(generated ${CMAKE_BINARY_DIR}/generated_for_install)
install(CODE "
  function(say file)
    file(MAKE_DIRECTORY \"${generated}\")
    execute_process(COMMAND $<TARGET_FILE:kvlathe> \${ARGN} OUTPUT_FILE \"${generated}/\${file}\" COMMAND_ERROR_IS_FATAL ANY)
  endfunction()
  set(share \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}\")
  set(zsh site-functions)
  if(CMAKE_INSTALL_PREFIX STREQUAL /usr)
    set(zsh vendor-completions)
  endif()
  foreach(shell bash zsh fish)
    say(completions.\${shell} completions \${shell})
  endforeach()
  file(INSTALL \"${generated}/completions.bash\" DESTINATION \"\${share}/bash-completion/completions\" RENAME kvlathe)
  file(INSTALL \"${generated}/completions.zsh\" DESTINATION \"\${share}/zsh/\${zsh}\" RENAME _kvlathe)
  file(INSTALL \"${generated}/completions.fish\" DESTINATION \"\${share}/fish/vendor_completions.d\" RENAME kvlathe.fish)
  file(REMOVE_RECURSE \"${generated}/man1\")
  say(manual.log manual \"${generated}/man1\")
  file(GLOB pages \"${generated}/man1/*.1\")
  execute_process(COMMAND gzip -9n \${pages} COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB pages \"${generated}/man1/*.gz\")
  file(INSTALL \${pages} DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_MANDIR}/man1\")
")

# What only a package of the system has: it writes to /etc whatever the prefix is.
set(docdir ${CMAKE_INSTALL_DATADIR}/doc/kvlathe)
set(package_only COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES ${deploy}/systemd/kvlathe@.service ${deploy}/systemd/kvlathe-ranks@.service DESTINATION lib/systemd/system ${package_only})
install(FILES ${deploy}/systemd/kvlathe.env DESTINATION /etc/kvlathe PERMISSIONS OWNER_READ OWNER_WRITE ${package_only})
install(FILES ${CMAKE_SOURCE_DIR}/README.md ${deploy}/debian/copyright DESTINATION ${docdir} ${package_only})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs DESTINATION ${docdir} ${package_only} PATTERN results EXCLUDE)
install(DIRECTORY ${deploy}/kubernetes DESTINATION ${docdir}/examples ${package_only})
install(FILES ${deploy}/debian/overrides DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides RENAME kvlathe ${package_only})
# Debian has changelogs compressed. DESTDIR and the prefix are those of the installation.
install(CODE "
  function(install_compressed from to)
    set(folder \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share\")
    get_filename_component(parent \"\${folder}/\${to}\" DIRECTORY)
    file(MAKE_DIRECTORY \"\${parent}\")
    execute_process(COMMAND gzip -9nc \"\${from}\" OUTPUT_FILE \"\${folder}/\${to}.gz\" COMMAND_ERROR_IS_FATAL ANY)
  endfunction()
  install_compressed(\"${deploy}/debian/changelog\" doc/kvlathe/changelog.Debian)
  install_compressed(\"${CMAKE_SOURCE_DIR}/CHANGELOG.md\" doc/kvlathe/changelog)
" ${package_only})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME kvlathe)
set(CPACK_PACKAGE_VENDOR kvlathe)
set(CPACK_PACKAGE_CONTACT "kvlathe maintainers <maintainers@kvlathe.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
  WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL Unspecified debian)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "haproxy, openmpi-bin")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "language models on a compressed key/value cache")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "Decoder language models whose key/value cache is stored compressed, and
attention that computes on the compressed form: kvlathe generates text,
holds conversations, compares caches, and serves the OpenAI API. The
package has a systemd service for each port, and the configuration of
HAProxy in front of several.")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${deploy}/debian/postinst ${deploy}/debian/postrm ${deploy}/debian/conffiles)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
