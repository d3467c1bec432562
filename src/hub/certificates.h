// Certificates that hosts of HTTPS are checked by. Those that libcurl was built with are Debian's;
// a program that was built there and runs elsewhere finds those of its system here.
#pragma once

#include <string>

namespace kvlathe {

struct Certificates {
  std::string file;    // of PEM; empty: what libcurl was built with
  std::string folder;  // of hashed names, as OpenSSL has them; empty: what libcurl was built with
};

// SSL_CERT_FILE and SSL_CERT_DIR where they are set, as OpenSSL reads them. Else the file of this
// system: Debian's, Fedora's, openSUSE's or OpenSSL's own. Else the spare one.
Certificates FindCertificates();

// Whether there are any without a spare file.
bool HaveCertificates();
// A file of PEM for systems that have none, such as that of Python's certifi. Set before anything
// is fetched.
void SetSpareCertificates(std::string file);

}  // namespace kvlathe
