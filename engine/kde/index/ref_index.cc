#include "engine/kde/index/ref_index.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "engine/exact/open_block.h"
#include "engine/exact/row_tile.h"
#include "engine/exact/softmax_sums.h"
#include "engine/kde/index/head_index.h"
#include "engine/kde/index/leaf_strip.h"
#include "engine/ref_gemm.h"
#include "engine/simd/maps.h"
#include "engine/simd/softmax.h"

namespace attnd::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::size_t Index(std::int64_t i) { return static_cast<std::size_t>(i); }

float ExpOf(float x) {
  float y = 0.0F;
  Exp(&x, &y, 1);
  return y;
}

// Sums run in 16 lanes, which are then added in halves.
class LaneSum {
 public:
  void Add(std::int64_t i, float x) { lanes_[Index(i % 16)] += x; }
  float Total() const {
    std::array<float, 8> eight{};
    for (std::size_t i = 0; i < 8; ++i) eight[i] = lanes_[i] + lanes_[i + 8];
    std::array<float, 4> four{};
    for (std::size_t i = 0; i < 4; ++i) four[i] = eight[i] + eight[i + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
  }

 private:
  std::array<float, 16> lanes_{};
};

// As Dot() of engine/simd/nearest.h: fused in lanes, what is left over added at the end.
float DotOf(const float* a, const float* b, std::int64_t n) {
  std::array<float, 16> lanes{};
  const std::int64_t whole = n / 16 * 16;
  for (std::int64_t i = 0; i < whole; ++i) {
    lanes[Index(i % 16)] = std::fma(a[i], b[i], lanes[Index(i % 16)]);
  }
  LaneSum sum;
  for (std::int64_t i = 0; i < 16; ++i) sum.Add(i, lanes[Index(i)]);
  float rest = 0.0F;
  for (std::int64_t i = whole; i < n; ++i) rest += a[i] * b[i];
  return sum.Total() + rest;
}

struct Leaf {
  std::int64_t span = 0;
  std::int64_t leaf = 0;
  float log_mass = 0.0F;
  float weight = 0.0F;  // 0: read
  bool read = false;
};

// One row and the spans of its head.
class RefRow {
 public:
  RefRow(const LayerShape& shape, const IndexState& state, const RefIndexQuery& query,
         const RefIndexStages& stages)
      : shape_(shape),
        layout_(shape),
        query_(query),
        stages_(stages),
        row_(Index(shape.key_dim)),
        acc_(Index(layout_.padded_value_dim)) {
    ViewSpans(state, query.head / shape.group_size(), views_);
    for (std::size_t c = 0; c < row_.size(); ++c) row_[c] = query.row[c] * shape.scale;
  }

  void AddSummaries();
  void Read(const BlockView<float>& block);
  void ReadLeaves();
  float Write(float* output) const;

 private:
  const HeadIndex& Of(std::int64_t span) const { return *views_[Index(span)].index; }
  std::int64_t SpanCount() const { return static_cast<std::int64_t>(views_.size()); }
  bool IsOwn(const Leaf& leaf) const;
  // The row minus what the span's leaves are summarised about.
  std::vector<float> Offset(const HeadIndex& index) const;
  float Square(const HeadIndex& index) const;
  void Score();
  bool Select(std::int64_t span, float* slope);

  const LayerShape shape_;
  const BlockLayout layout_;
  const RefIndexQuery query_;
  const RefIndexStages stages_;
  std::vector<SpanView> views_;
  std::vector<float> row_;  // scaled
  std::vector<Leaf> leaves_;
  float largest_ = -kInfinity;
  float reference_ = 0.0F;
  bool finite_ = true;
  float far_ = 0.0F;

  std::vector<float> acc_;
  float max_ = -kInfinity;
  float sum_ = 0.0F;
};

bool RefRow::IsOwn(const Leaf& leaf) const {
  const std::int64_t token = query_.position - views_[Index(leaf.span)].first_token;
  if (query_.position < 0 || token < 0 || token >= Of(leaf.span).tokens()) return false;
  const std::int32_t place = Of(leaf.span).place(token);
  return place >= 0 && place / kBlockTokens == leaf.leaf;
}

std::vector<float> RefRow::Offset(const HeadIndex& index) const {
  std::vector<float> offset = row_;
  if (index.metric() == nullptr) return offset;
  for (std::size_t c = 0; c < offset.size(); ++c) offset[c] -= index.metric()->centre()[c];
  return offset;
}

float RefRow::Square(const HeadIndex& index) const {
  const std::int64_t d = shape_.key_dim;
  const std::vector<float> offset = Offset(index);
  if (index.metric() == nullptr || !stages_.metric) return DotOf(offset.data(), offset.data(), d);
  const std::int64_t columns = index.metric()->padded_key_dim();
  std::vector<float> turned(Index(columns));
  RefGemmNN(1, columns, d, offset.data(), d, index.metric()->covariance(), columns, false,
            turned.data(), columns);
  return std::max(DotOf(turned.data(), offset.data(), d), 0.0F);
}

void RefRow::Score() {
  for (std::int64_t s = 0; s < SpanCount(); ++s) {
    const LeafStats stats = Of(s).stats();
    for (std::int64_t leaf = 0; leaf < Of(s).leaves(); ++leaf) {
      float score = 0.0F;
      RefGemmNN(1, 1, shape_.key_dim, row_.data(), shape_.key_dim,
                Of(s).means_t(leaf / kBlockTokens) + leaf % kBlockTokens, kBlockTokens, false,
                &score, 1);
      const float log_mass = score + stats.log_counts[leaf];
      if (!(log_mass < kInfinity)) finite_ = false;
      largest_ = std::max(largest_, log_mass);
      leaves_.push_back({s, leaf, log_mass, 0.0F, false});
    }
  }
  for (std::int64_t s = 0; s < SpanCount(); ++s) {
    LaneSum masses;
    for (const Leaf& leaf : leaves_) {
      if (leaf.span == s) masses.Add(leaf.leaf, ExpOf(leaf.log_mass - largest_));
    }
    reference_ += masses.Total();
  }
}

// False where the row's numbers for the span are not finite.
bool RefRow::Select(std::int64_t span, float* slope) {
  const HeadIndex& index = Of(span);
  const LeafStats stats = index.stats();
  const float square = Square(index);
  const std::vector<float> offset = Offset(index);
  const float length = std::sqrt(DotOf(offset.data(), offset.data(), shape_.key_dim));
  const SpanView& view = views_[Index(span)];
  const float threshold =
      Threshold(query_.threshold) * reference_ / ErrorScale(views_, view, query_.threshold);
  const float span_ratio = view.errors->mass_ratios[Index(view.TableRow(query_.threshold))];
  LaneSum mass;
  LaneSum slopes;
  for (Leaf& leaf : leaves_) {
    if (leaf.span != span) continue;
    const float log_lower = leaf.log_mass - largest_;
    const float lower = ExpOf(log_lower);
    const float s = square * stats.variances[leaf.leaf];
    float square_error = 0.0F;
    float predicted = 0.0F;
    if (s <= 20.0F) {
      const float growth = ExpOf(0.5F * s);
      const float y = growth * growth;
      predicted = lower * growth;
      square_error = (predicted * predicted) * (std::fma(y, y, -1.0F) * stats.noises[leaf.leaf]);
    } else {
      const float reach = std::fma(length, stats.radii[leaf.leaf], log_lower);
      predicted = ExpOf(reach <= 80.0F ? reach : 80.0F);
      square_error = predicted * predicted;
    }
    leaf.read = (stages_.selection && !(square_error <= threshold * threshold)) ||
                (stages_.own_leaf && IsOwn(leaf));
    if (leaf.read) continue;
    const float ratio = stages_.ratios ? span_ratio * stats.ratios[leaf.leaf] : 1.0F;
    leaf.weight = predicted * ratio;
    mass.Add(leaf.leaf, leaf.weight);
    slopes.Add(leaf.leaf, leaf.weight * stats.slopes[leaf.leaf]);
  }
  far_ += mass.Total();
  *slope = slopes.Total();
  return std::isfinite(square) && std::isfinite(length);
}

void RefRow::AddSummaries() {
  Score();
  std::vector<float> slopes(Index(SpanCount()));  // by metric
  for (std::int64_t s = 0; s < SpanCount(); ++s) {
    float slope = 0.0F;
    finite_ = Select(s, &slope) && finite_;
    slopes[Index(views_[Index(s)].metric)] += slope;
  }
  if (!finite_ || !std::isfinite(reference_) || !std::isfinite(far_)) {
    for (Leaf& leaf : leaves_) leaf.read = true;
    return;
  }
  if (far_ > 0.0F) {
    max_ = largest_;
    sum_ = far_;
  }
  const std::int64_t columns = layout_.padded_value_dim;
  for (std::int64_t s = 0; s < SpanCount(); ++s) {
    const HeadIndex& index = Of(s);
    std::vector<float> weights(Index(index.columns()));
    for (const Leaf& leaf : leaves_) {
      if (leaf.span == s && !leaf.read) weights[Index(leaf.leaf)] = leaf.weight;
    }
    for (std::int64_t block = 0; block * kBlockTokens < index.columns(); ++block) {
      RefGemmNN(1, columns, kBlockTokens, weights.data() + block * kBlockTokens, kBlockTokens,
                index.mean_values(block), columns, true, acc_.data(), columns);
    }
  }
  std::int64_t next = 0;
  for (const SpanView& view : views_) {
    if (view.metric != next) continue;
    const float slope = slopes[Index(next++)];
    const LeafMetric* metric = view.index->metric().get();
    if (metric == nullptr || !stages_.slopes || slope == 0.0F) continue;
    std::vector<float> followed(Index(columns));
    RefGemmNN(1, columns, shape_.key_dim, Offset(*view.index).data(), shape_.key_dim,
              metric->cross_covariance(), columns, false, followed.data(), columns);
    for (float& value : followed) value *= slope;
    if (!AllFinite(followed.data(), columns)) continue;
    for (std::size_t c = 0; c < followed.size(); ++c) acc_[c] += followed[c];
  }
}

void RefRow::Read(const BlockView<float>& block) {
  if (block.valid == 0) return;
  std::array<float, kBlockTokens> scores{};
  RefGemmNN(1, kBlockTokens, shape_.key_dim, row_.data(), shape_.key_dim, block.keys_t,
            kBlockTokens, false, scores.data(), kBlockTokens);
  float correction = 1.0F;
  OnlineSoftmaxBlock(scores.data(), 1, &block.valid, 0, &max_, &sum_, &correction);
  const std::int64_t columns = layout_.padded_value_dim;
  RescaleRows(acc_.data(), 1, columns, &correction);
  RefGemmNN(1, columns, kBlockTokens, scores.data(), kBlockTokens, block.values, columns, true,
            acc_.data(), columns);
}

void RefRow::ReadLeaves() {
  for (const Leaf& leaf : leaves_) {
    if (leaf.read) Read(Of(leaf.span).leaf(leaf.leaf));
  }
}

float RefRow::Write(float* output) const {
  const std::int64_t columns = layout_.padded_value_dim;
  std::vector<float> memory(Index(SoftmaxSums::RowFloats(columns)));
  const SoftmaxSums sums(memory.data(), 1, columns);
  std::copy_n(acc_.data(), columns, sums.acc);
  sums.max[0] = max_;
  sums.sum[0] = sum_;
  float log_normalizer = 0.0F;
  WriteAnswerRows(sums, {.rows = 1}, shape_.value_dim,
                  {.outputs = output, .log_normalizers = &log_normalizer});
  return log_normalizer;
}

}  // namespace

float RefIndexRow(const LayerShape& shape, const IndexState& state, const TailView& tail,
                  const RefIndexQuery& query, const RefIndexStages& stages, float* output) {
  RefRow row(shape, state, query, stages);
  const std::int64_t kv_head = query.head / shape.group_size();
  if (!state.spans().empty()) row.AddSummaries();
  for (const auto& block : state.raw_blocks()) row.Read(block->view(state.layout(), kv_head));
  if (tail.rows > 0) {
    Scratch scratch;
    row.Read(OpenBlock(tail, shape, kv_head, scratch));
  }
  row.ReadLeaves();
  return row.Write(output);
}

}  // namespace attnd::engine
