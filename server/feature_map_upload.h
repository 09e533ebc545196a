// One upload of a learned feature map, from its header to its place in the store: what
// PutFeatureMap does, without gRPC.
//
// Nothing is trusted: sizes are checked before anything is allocated, memory is reserved in the
// store before it is taken, head by head as numbers arrive, and the SHA-256 is computed on the way.
// For one thread at a time. After a failure the upload is to be dropped, which gives its memory
// back.
//
// Take() runs in a reaction of gRPC's: 1 MiB took 1.0 to 1.4 ms, 0.6 of it for the SHA-256. The
// chunk that begins a head touches a line of each of its d rows: where a head is 16 MiB of memory
// that is fresh from the system and d = 4,096, the page faults made that one 8 ms.
#ifndef ATTND_SERVER_FEATURE_MAP_UPLOAD_H_
#define ATTND_SERVER_FEATURE_MAP_UPLOAD_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attnd/v1/attention.pb.h"
#include "engine/linear/map_weights.h"
#include "server/feature_map_store.h"
#include "server/options.h"
#include "server/sha256.h"

namespace attnd::server {

// The largest chunk of a payload.
inline constexpr std::int64_t kMaxChunkBytes = std::int64_t{1} << 20;

class FeatureMapUpload {
 public:
  // The referenced objects outlive the upload.
  FeatureMapUpload(FeatureMapStore& store, const Options& options)
      : store_(store), options_(options), reservation_(store) {}

  // Takes the next message. OK: the next one is wanted, unless there(). INVALID_FIELD, NOT_FINITE
  // or FEATURE_MAP_BYTES.
  absl::Status Take(const v1::PutFeatureMapRequest& message);
  // The header names a map that the store has: the rest is not needed.
  bool there() const { return there_; }

  // The client has sent all, or there(). INVALID_FIELD where something is missing or the SHA-256 is
  // another one.
  absl::StatusOr<v1::PutFeatureMapResponse> End();

 private:
  absl::Status TakeHeader(const v1::FeatureMapHeader& header);
  absl::Status TakeChunk(const std::string& chunk);

  FeatureMapStore& store_;
  const Options& options_;
  FeatureMapStore::Reservation reservation_;
  std::optional<engine::MapWeightsBuilder> builder_;  // from the header on
  Sha256 sha256_;
  Sha256Digest expected_{};
  std::int64_t payload_bytes_ = 0;
  std::int64_t received_bytes_ = 0;
  std::string rest_;  // the beginning of a number whose end has not come
  std::int64_t map_bytes_ = 0;
  bool there_ = false;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_FEATURE_MAP_UPLOAD_H_
