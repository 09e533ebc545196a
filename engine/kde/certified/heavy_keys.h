// The keys of largest scanned score of one query row: the k largest, and with them all whose score
// is within `margin` of the largest, up to `most` keys.
//
// Keys are ordered by descending score, of equal scores the earlier key first; what is chosen is a
// prefix of that order, so it is a function of the scores alone. Keeps its memory between rows. One
// thread at a time.
#ifndef ATTND_ENGINE_KDE_CERTIFIED_HEAVY_KEYS_H_
#define ATTND_ENGINE_KDE_CERTIFIED_HEAVY_KEYS_H_

#include <cstdint>
#include <span>
#include <vector>

namespace attnd::engine {

struct HeavyKey {
  std::int64_t key = 0;  // 64 * block + row
  float score = 0.0F;
};

class HeavyKeys {
 public:
  // Requires 0 <= k <= most, margin >= 0.
  void Reset(std::int64_t k, float margin, std::int64_t most);

  // Offers the scores of 64 keys, below 2^126 in size; -inf: not to be chosen. Blocks come in
  // ascending order.
  void Offer(std::int64_t block, const float* scores);

  // What was chosen, by ascending key. Valid until Reset().
  std::span<const HeavyKey> Choose();

 private:
  // Drops all candidates but the `count` first of the order; returns the least score kept.
  float KeepLargest(std::int64_t count);

  std::int64_t k_ = 0;
  float margin_ = 0.0F;
  std::int64_t most_ = 0;
  float threshold_ = 0.0F;            // a score must be above
  std::vector<HeavyKey> candidates_;  // by ascending key
  std::vector<float> scores_;         // of candidates
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_CERTIFIED_HEAVY_KEYS_H_
