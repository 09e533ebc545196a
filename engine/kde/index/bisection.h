// Where clustering starts: a set of keys is cut in two at the middle between two centres, and the
// halves again, until every piece fits a leaf of 64 keys; so are means of leaves, until every piece
// fits a branch.
//
// The two centres are the 2-means of a sample. The cut is put at the multiple of a piece's size
// nearest to the middle plane, but never beyond a quarter of what is cut, so that all pieces but
// the last one are full and the depth is bounded. Pieces that are neighbours in the tree are
// neighbours in the order.
//
// A pure function of the keys. Not thread-safe; cannot fail but for std::bad_alloc.
#ifndef ATTND_ENGINE_KDE_INDEX_BISECTION_H_
#define ATTND_ENGINE_KDE_INDEX_BISECTION_H_

#include <cstdint>
#include <span>
#include <vector>

namespace attnd::engine {

// Row-major keys [count, dim], components of up to 1e15 in magnitude. Borrowed.
struct KeyMatrix {
  const float* rows = nullptr;
  std::int64_t count = 0;
  std::int64_t dim = 0;

  const float* row(std::int64_t i) const { return rows + i * dim; }
};

class Bisection {
 public:
  // Permutes `order`, which holds numbers of keys and outlives this. No piece will have more than
  // `size`.
  Bisection(const KeyMatrix& keys, std::span<std::int32_t> order, std::int64_t size);

  // Cuts one piece. True when none is larger than it may be.
  bool Step();

  // Calls of Step() that there will be, at least.
  std::int64_t steps() const { return steps_; }

 private:
  struct Range {
    std::int64_t first = 0;
    std::int64_t end = 0;
  };

  void FindCentres(const Range& range);
  void Cut(const Range& range);

  const KeyMatrix keys_;
  const std::span<std::int32_t> order_;
  const std::int64_t size_;
  const std::int64_t steps_;
  std::vector<Range> open_;  // larger pieces
  std::vector<float> low_;   // the centres
  std::vector<float> high_;
  std::vector<float> direction_;
  float middle_ = 0.0F;  // between the centres, along the direction
  std::vector<std::int32_t> sample_;
  std::vector<std::int32_t> low_keys_;  // of the sample, nearer to the low centre
  std::vector<std::int32_t> high_keys_;
  std::vector<float> dots_;  // of keys and the direction, or squared distances
  std::vector<std::uint64_t> projections_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_BISECTION_H_
