#include "hub/certificates.h"

#include <cstdlib>
#include <utility>

#include "io/files.h"

namespace kvlathe {
namespace {

constexpr const char* kSystemFiles[] = {
    "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Arch, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",                   // Fedora, Red Hat
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // the same, newer
    "/etc/ssl/ca-bundle.pem",                             // openSUSE
    "/etc/ssl/cert.pem",                                  // OpenSSL's own
};

std::string& SpareFile() {
  static std::string file;
  return file;
}

std::string Named(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

bool AreEmpty(const Certificates& found) { return found.file.empty() && found.folder.empty(); }

// Without the spare ones.
Certificates OwnCertificates() {
  Certificates found{.file = Named("SSL_CERT_FILE"), .folder = Named("SSL_CERT_DIR")};
  for (const char* file : kSystemFiles) {
    if (AreEmpty(found) && FileExists(file)) found.file = file;
  }
  return found;
}

}  // namespace

Certificates FindCertificates() {
  Certificates found = OwnCertificates();
  if (AreEmpty(found)) found.file = SpareFile();
  return found;
}

bool HaveCertificates() { return !AreEmpty(OwnCertificates()); }

void SetSpareCertificates(std::string file) { SpareFile() = std::move(file); }

}  // namespace kvlathe
