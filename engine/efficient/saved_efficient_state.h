// The stored form of the sums of Efficient Attention: S and Z as saved_linear_state.h has them,
// then, unless the state holds no tokens, the steps of each kv-head's columns, i32 [H, d_k]; all of
// a head are kNoSteps before its first unmasked token.
//
// Any thread; state, writer and reader belong to the caller.
#ifndef ATTND_ENGINE_EFFICIENT_SAVED_EFFICIENT_STATE_H_
#define ATTND_ENGINE_EFFICIENT_SAVED_EFFICIENT_STATE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/byte_io.h"
#include "engine/efficient/efficient_state.h"
#include "engine/linear/linear_layer.h"

namespace attnd::engine {

void SaveEfficientState(const LinearLayer& layer, const EfficientState& state, ByteWriter& writer);

// Into a state without tokens. DataLoss, leaving the state unusable, where the bytes are not those
// of one of `sealed_tokens` tokens.
absl::Status LoadEfficientState(const LinearLayer& layer, std::int64_t sealed_tokens,
                                ByteReader& reader, EfficientState& state);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_EFFICIENT_SAVED_EFFICIENT_STATE_H_
