# Writes the bytes of PAGE to BYTES as numbers of C++, if they changed.
file(READ ${PAGE} hex HEX)
string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${hex}")
file(WRITE ${BYTES}.new "${bytes}\n")
file(COPY_FILE ${BYTES}.new ${BYTES} ONLY_IF_DIFFERENT)
