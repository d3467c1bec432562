// Fetches one file of a model into the cache.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "hub/hub_cache.h"
#include "hub/hub_client.h"
#include "hub/hub_news.h"
#include "hub/hub_options.h"

namespace kvlathe {

struct WantedFile {
  std::string path;  // in the repository
  HubFileFacts facts;
};

class BlobFetch {
 public:
  // All of these outlive it.
  BlobFetch(const HubOptions& options, const HubModel& model, const std::string& commit,
            const HubCache& cache, HubClient* client, const HubNews& news)
      : options_(options),
        model_(model),
        commit_(commit),
        cache_(cache),
        client_(*client),
        news_(news) {}

  // How many bytes of the file the cache lacks.
  int64_t MissingBytes(const WantedFile& file) const;

  // Fetches what is missing and puts the file into the snapshot of the commit. While another
  // process fetches the same bytes it waits. What an interruption leaves is gone on from, in this
  // call or the next; bytes of another hash are removed. `on_bytes` is told how many bytes of the
  // file are there. Errors are those of HubClient, and kResourceExhausted: the disk is full.
  Status Fetch(const WantedFile& file, const std::function<void(int64_t)>& on_bytes);

 private:
  bool IsThere(const WantedFile& file) const;
  Status FetchBlob(const WantedFile& file, const std::function<void(int64_t)>& on_bytes);
  // Downloads behind what `part` holds.
  Status GoOn(const WantedFile& file, const std::function<void(int64_t)>& on_bytes,
              class PartFile* part);

  const HubOptions& options_;
  const HubModel& model_;
  const std::string& commit_;
  const HubCache& cache_;
  HubClient& client_;
  const HubNews& news_;
};

}  // namespace kvlathe
