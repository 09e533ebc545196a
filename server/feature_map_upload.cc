#include "server/feature_map_upload.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/aligned_buffer.h"
#include "proto/feature_map_encoding.h"
#include "server/error.h"

namespace attnd::server {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::int64_t kNumberBytes = sizeof(float);

absl::Status Invalid(const std::string& message) { return Error(v1::INVALID_FIELD, message); }

absl::StatusOr<engine::MapActivation> ActivationOf(v1::FeatureMapHeader::Activation activation) {
  switch (activation) {
    case v1::FeatureMapHeader::RELU:
      return engine::MapActivation::kRelu;
    case v1::FeatureMapHeader::EXP:
      return engine::MapActivation::kExp;
    case v1::FeatureMapHeader::SOFTMAX:
      return engine::MapActivation::kSoftmax;
    case v1::FeatureMapHeader::HEDGEHOG:
      return engine::MapActivation::kHedgehog;
    default:
      return Invalid(absl::StrCat("header.activation is ", activation,
                                  "; it must be RELU, EXP, SOFTMAX or HEDGEHOG"));
  }
}

absl::Status NoMemory() {
  return RetryableError(v1::FEATURE_MAP_BYTES,
                        "the machine has no memory for another learned feature map",
                        absl::Seconds(1));
}

}  // namespace

absl::Status FeatureMapUpload::Take(const v1::PutFeatureMapRequest& message) {
  try {
    switch (message.message_case()) {
      case v1::PutFeatureMapRequest::kHeader:
        return TakeHeader(message.header());
      case v1::PutFeatureMapRequest::kChunk:
        return TakeChunk(message.chunk());
      case v1::PutFeatureMapRequest::MESSAGE_NOT_SET:
        break;
    }
  } catch (const std::bad_alloc&) {
    return NoMemory();
  }
  return Invalid("message is not set; it must be header or chunk");
}

absl::Status FeatureMapUpload::TakeHeader(const v1::FeatureMapHeader& header) {
  if (builder_)
    return Invalid("header comes a second time; it must come in the first message only");
  absl::StatusOr<engine::MapActivation> activation = ActivationOf(header.activation());
  if (!activation.ok()) return activation.status();
  const engine::MapWeightsShape shape = {
      *activation,       header.kv_heads(), header.query_heads(), header.key_dim(),
      header.features(), header.key_bias(), header.query_bias()};
  if (absl::Status status = engine::CheckMapWeightsShape(shape); !status.ok()) {
    return Invalid(absl::StrCat("header.", std::string(status.message())));
  }
  payload_bytes_ = shape.numbers() * kNumberBytes;
  if (header.payload_bytes() != payload_bytes_) {
    return Invalid(absl::StrCat("header.payload_bytes is ", header.payload_bytes(), "; it must be ",
                                payload_bytes_, " for these sizes"));
  }
  if (header.sha256().size() != expected_.size()) {
    return Invalid(absl::StrCat("header.sha256 has ", header.sha256().size(),
                                " bytes; it must have ", expected_.size()));
  }
  std::copy(header.sha256().begin(), header.sha256().end(), expected_.begin());
  map_bytes_ = shape.bytes(shape.numbers());
  // All that the store will hold for it: what fits here fits an empty store.
  const std::int64_t held_bytes = map_bytes_ + FeatureMapStore::kEntryBytes;
  if (held_bytes > options_.max_feature_map_size) {
    return Error(v1::FEATURE_MAP_BYTES,
                 absl::StrCat("the map takes ", held_bytes,
                              " bytes; it must take at most max_feature_map_size = ",
                              options_.max_feature_map_size));
  }
  if (const MapWeightsPtr map = store_.Find(expected_)) {
    if (map->shape() != shape) {
      return Invalid("header.sha256 is that of a map with another header");
    }
    there_ = true;
    return absl::OkStatus();
  }
  absl::Status reserved = reservation_.GrowTo(shape.bytes(0));
  if (!reserved.ok()) return reserved;
  builder_.emplace(shape);
  sha256_.Update(contract::EncodeFeatureMapHeader(header));
  return absl::OkStatus();
}

absl::Status FeatureMapUpload::TakeChunk(const std::string& chunk) {
  if (!builder_) return Invalid("the first message is a chunk; it must be the header");
  const auto size = static_cast<std::int64_t>(chunk.size());
  if (size == 0 || size > kMaxChunkBytes) {
    return Invalid(absl::StrCat("chunk has ", size, " bytes; it must have 1 to ", kMaxChunkBytes));
  }
  if (size > payload_bytes_ - received_bytes_) {
    return Invalid(absl::StrCat("chunk has ", size, " bytes; of the payload's ", payload_bytes_,
                                " only ", payload_bytes_ - received_bytes_, " are missing"));
  }
  received_bytes_ += size;
  sha256_.Update(chunk);
  const std::size_t before = rest_.size();
  const std::int64_t count = static_cast<std::int64_t>(before + chunk.size()) / kNumberBytes;
  const std::size_t taken = static_cast<std::size_t>(count * kNumberBytes);
  if (count == 0) {
    rest_ += chunk;
    return absl::OkStatus();
  }
  absl::Status reserved =
      reservation_.GrowTo(builder_->shape().bytes(builder_->received() + count));
  if (!reserved.ok()) return reserved;
  auto numbers = engine::AlignedBuffer<float>::Uninitialized(count);
  char* const bytes = reinterpret_cast<char*>(numbers.data());
  std::memcpy(bytes, rest_.data(), before);
  std::memcpy(bytes + before, chunk.data(), taken - before);
  rest_.assign(chunk, taken - before);
  absl::Status added = builder_->Add(numbers.data(), count);
  return added.ok() ? added : Error(v1::NOT_FINITE, std::string(added.message()));
}

absl::StatusOr<v1::PutFeatureMapResponse> FeatureMapUpload::End() {
  v1::PutFeatureMapResponse response;
  response.set_already_there(there_);
  if (!there_) {
    if (!builder_) return Invalid("no message came; the first one must be the header");
    if (!builder_->complete()) {
      return Invalid(absl::StrCat("the payload has ", received_bytes_, " bytes; it must have ",
                                  payload_bytes_));
    }
    const Sha256Digest computed = sha256_.Finish();
    if (computed != expected_) {
      return Invalid(absl::StrCat("header.sha256 is ", ToHex(expected_),
                                  "; header and payload give ", ToHex(computed)));
    }
    try {
      response.set_already_there(!store_.Add(expected_, builder_->Finish(), reservation_));
    } catch (const std::bad_alloc&) {
      return NoMemory();
    }
  }
  response.set_sha256(std::string(expected_.begin(), expected_.end()));
  response.set_bytes(map_bytes_);
  return response;
}

}  // namespace attnd::server
