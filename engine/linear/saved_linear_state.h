// The stored form of the sums of linear attention.
//
//   u8   which engine wrote them (SavedSums)
//   i64  unmasked tokens
//   and, unless the state holds no tokens, for each kv-head
//   i32  exponent, or kNoExponent
//   f64  S [c x d_v], then Z [c], row-major, without the padding that they have in memory
//
// so that a state of any length takes 8 c (d_v + 1) + 4 bytes per kv-head and 9 more. The f32
// summary and the bound are derived from the totals as sealing derives them.
//
// Loading trusts nothing: sums that are not finite in f32 and exponents out of range are DataLoss.
// Sums that no tokens could have given, but within range, are not told from others: the checksum
// over the stored bytes is there for that.
//
// Any thread; state, writer and reader belong to the caller.
#ifndef ATTND_ENGINE_LINEAR_SAVED_LINEAR_STATE_H_
#define ATTND_ENGINE_LINEAR_SAVED_LINEAR_STATE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/byte_io.h"
#include "engine/linear/linear_layer.h"
#include "engine/linear/linear_state.h"

namespace attnd::engine {

// Which engine wrote sums. Stored: a number never changes and is never used again.
enum class SavedSums : std::uint8_t { kLinear = 1, kGated = 2, kEfficient = 3, kWindow = 4 };

void SaveLinearState(const LinearLayer& layer, SavedSums kind, const LinearState& state,
                     ByteWriter& writer);

// Into a state without tokens. DataLoss, leaving the state unusable, where the bytes are not those
// of one of `sealed_tokens` tokens.
absl::Status LoadLinearState(const LinearLayer& layer, SavedSums kind, std::int64_t sealed_tokens,
                             ByteReader& reader, LinearState& state);

// One head's totals, in f64 or, of one block, in f32; stored as above.
template <typename Number>
void PutTotals(const LinearLayer& layer, const Number* totals, ByteWriter& writer);
// Padding is left alone. Returns the largest magnitude, infinity where one is NaN.
template <typename Number>
double GetTotals(const LinearLayer& layer, ByteReader& reader, Number* totals);
// Of stored totals of one head with numbers of so many bytes.
std::int64_t StoredTotalsBytes(const LinearLayer& layer, std::int64_t number_bytes);

// Whether sums over `unmasked` tokens may have the exponent.
bool FitsExponent(const LinearLayer& layer, std::int32_t exponent, std::int64_t unmasked);

// DataLoss, saying what of saved sums is not right.
absl::Status DamagedSums(const char* what);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_SAVED_LINEAR_STATE_H_
