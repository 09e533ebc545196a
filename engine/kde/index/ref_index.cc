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
#include "engine/kde/index/branch_summary.h"
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

// A branch or a leaf of a span.
struct Node {
  std::int64_t span = 0;
  std::int64_t number = 0;
  float log_mass = 0.0F;
  float weight = 0.0F;
  bool selected = false;  // leaves: read; branches: their leaves are looked at instead
};

// Whether two selected branches are in one run: neighbours in a block of 64 leaves.
bool Continues(const Node& before, const Node& branch) {
  constexpr std::int64_t kBlockBranches = kBlockTokens / kBranchLeaves;
  return before.span == branch.span && before.number + 1 == branch.number &&
         before.number / kBlockBranches == branch.number / kBlockBranches;
}

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
  // Which leaf of the span holds the query's own token; -1: none.
  std::int64_t OwnLeaf(std::int64_t span) const;
  // The row minus what the span's leaves are summarised about.
  std::vector<float> Offset(const HeadIndex& index) const;
  float Square(const HeadIndex& index) const;
  float LogMass(const SummaryTable& table, std::int64_t i);
  // Selects nodes [first, end), which are neighbours in the span's table, above `threshold`; the
  // others get their weights.
  void Select(std::vector<Node>& nodes, std::size_t first, std::size_t end,
              const SummaryTable& table, float threshold, std::int64_t own);
  // Squared error and mass that are predicted of a node.
  struct Prediction {
    float square_error = 0.0F;
    float mass = 0.0F;
  };
  Prediction Predict(const Node& node, const SummaryTable& table) const;
  void SelectBranches();
  void SelectLeaves();
  void AddValues(const std::vector<Node>& nodes, std::int64_t span, const SummaryTable& table,
                 std::int64_t inner);

  const LayerShape shape_;
  const BlockLayout layout_;
  const RefIndexQuery query_;
  const RefIndexStages stages_;
  std::vector<SpanView> views_;
  std::vector<float> row_;  // scaled
  std::vector<Node> branches_;
  std::vector<Node> leaves_;    // of selected branches
  std::vector<float> squares_;  // u of each span
  std::vector<float> lengths_;
  std::vector<float> slopes_;  // by metric
  float largest_ = -kInfinity;
  float reference_ = 0.0F;
  bool finite_ = true;
  float far_ = 0.0F;

  std::vector<float> acc_;
  float max_ = -kInfinity;
  float sum_ = 0.0F;
};

std::int64_t RefRow::OwnLeaf(std::int64_t span) const {
  const std::int64_t token = query_.position - views_[Index(span)].first_token;
  if (!stages_.own_leaf || query_.position < 0 || token < 0 || token >= Of(span).tokens()) {
    return -1;
  }
  const std::int32_t place = Of(span).place(token);
  return place < 0 ? -1 : place / kBlockTokens;
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

float RefRow::LogMass(const SummaryTable& table, std::int64_t i) {
  float score = 0.0F;
  RefGemmNN(1, 1, shape_.key_dim, row_.data(), shape_.key_dim, table.mean_key(i), kBlockTokens,
            false, &score, 1);
  const float log_mass = score + table.stats().log_counts[i];
  if (!(log_mass < kInfinity)) finite_ = false;
  return log_mass;
}

RefRow::Prediction RefRow::Predict(const Node& node, const SummaryTable& table) const {
  const LeafStats stats = table.stats();
  const float log_lower = node.log_mass - largest_;
  const float s = squares_[Index(node.span)] * stats.variances[node.number];
  if (s <= 20.0F) {
    const float growth = ExpOf(0.5F * s);
    const float y = growth * growth;
    const float mass = ExpOf(log_lower) * growth;
    return {(mass * mass) * (std::fma(y, y, -1.0F) * stats.noises[node.number]), mass};
  }
  const float reach = std::fma(lengths_[Index(node.span)], stats.radii[node.number], log_lower);
  const float mass = ExpOf(reach <= 80.0F ? reach : 80.0F);
  return {mass * mass, mass};
}

void RefRow::Select(std::vector<Node>& nodes, std::size_t first, std::size_t end,
                    const SummaryTable& table, float threshold, std::int64_t own) {
  const SpanView& view = views_[Index(nodes[first].span)];
  threshold /= ErrorScale(views_, view, query_.threshold);
  const float span_ratio = view.errors->mass_ratios[Index(view.TableRow(query_.threshold))];
  LaneSum mass;
  LaneSum slopes;
  for (std::size_t i = first; i < end; ++i) {
    Node& node = nodes[i];
    const Prediction predicted = Predict(node, table);
    node.selected = (stages_.selection && !(predicted.square_error <= SquareThreshold(threshold) &&
                                            node.log_mass - largest_ <= 40.0F)) ||
                    node.number == own;
    if (node.selected) continue;
    const LeafStats stats = table.stats();
    const float ratio = stages_.ratios ? span_ratio * stats.ratios[node.number] : 1.0F;
    node.weight = predicted.mass * ratio;
    mass.Add(node.number, node.weight);
    slopes.Add(node.number, node.weight * stats.slopes[node.number]);
  }
  far_ += mass.Total();
  slopes_[Index(view.metric)] += slopes.Total();
}

void RefRow::SelectBranches() {
  for (std::int64_t s = 0; s < SpanCount(); ++s) {
    for (std::int64_t b = 0; b < Of(s).branches().count(); ++b) {
      branches_.push_back({s, b, LogMass(Of(s).branches(), b)});
      largest_ = std::max(largest_, branches_.back().log_mass);
    }
  }
  const auto sum = [&](std::int64_t span, const auto& counts) {
    LaneSum masses;
    for (const Node& branch : branches_) {
      if (branch.span != span || !counts(branch)) continue;
      const float x = branch.log_mass - largest_;
      masses.Add(branch.number, ExpOf(x <= 40.0F ? x : 40.0F));
    }
    return masses.Total();
  };
  float reference = 0.0F;
  for (std::int64_t s = 0; s < SpanCount(); ++s) {
    reference += sum(s, [](const Node&) { return true; });
  }
  const float loosest = kBranchShare * Threshold(0) * reference;
  const auto always = [&](const Node& branch) {
    const SummaryTable& table = Of(branch.span).branches();
    return AlwaysLooksWithin(table.count()) ||
           !(Predict(branch, table).square_error <= SquareThreshold(loosest));
  };
  for (std::int64_t s = 0; s < SpanCount(); ++s) {
    reference_ += sum(s, [&](const Node& branch) { return !always(branch); });
  }
  std::size_t first = 0;
  for (std::int64_t s = 0; s < SpanCount(); ++s) {
    const SummaryTable& table = Of(s).branches();
    const std::size_t end = first + Index(table.count());
    const std::int64_t own = OwnLeaf(s);
    if (AlwaysLooksWithin(table.count())) {
      for (std::size_t i = first; i < end; ++i) branches_[i].selected = true;
    } else {
      Select(branches_, first, end, table, kBranchShare * Threshold(query_.threshold) * reference,
             own < 0 ? -1 : own / kBranchLeaves);
    }
    first = end;
  }
  LaneSum masses;  // of a run of always selected branches that are neighbours in a block of leaves
  const Node* last = nullptr;
  for (const Node& branch : branches_) {
    if (!branch.selected) continue;
    const SummaryTable& table = Of(branch.span).summaries();
    const bool counts = always(branch);
    if (counts && (last == nullptr || !Continues(*last, branch))) {
      reference_ += masses.Total();
      masses = {};
    }
    if (counts) last = &branch;
    for (std::int64_t i = 0; i < kBranchLeaves; ++i) {
      const std::int64_t leaf = branch.number * kBranchLeaves + i;
      if (leaf >= table.count()) break;
      leaves_.push_back({branch.span, leaf, LogMass(table, leaf)});
      const float x = leaves_.back().log_mass - largest_;
      if (counts) masses.Add(leaf, ExpOf(x <= 40.0F ? x : 40.0F));
    }
  }
  reference_ += masses.Total();
  finite_ = finite_ && std::isfinite(reference) && std::isfinite(reference_);
}

void RefRow::SelectLeaves() {
  for (std::size_t first = 0; first < leaves_.size();) {
    std::size_t end = first;
    const auto branch_of = [&](std::size_t i) {
      return Node{leaves_[i].span, leaves_[i].number / kBranchLeaves};
    };
    for (++end; end < leaves_.size(); ++end) {
      const Node before = branch_of(end - 1);
      const Node now = branch_of(end);
      if (before.number != now.number && !Continues(before, now)) break;
      if (before.span != now.span) break;
    }
    const std::int64_t span = leaves_[first].span;
    Select(leaves_, first, end, Of(span).summaries(), Threshold(query_.threshold) * reference_,
           OwnLeaf(span));
    first = end;
  }
}

void RefRow::AddValues(const std::vector<Node>& nodes, std::int64_t span, const SummaryTable& table,
                       std::int64_t inner) {
  std::vector<float> weights(Index(table.columns()));
  for (const Node& node : nodes) {
    if (node.span == span && !node.selected) weights[Index(node.number)] = node.weight;
  }
  const std::int64_t columns = layout_.padded_value_dim;
  for (std::int64_t first = 0; first < table.columns(); first += inner) {
    RefGemmNN(1, columns, inner, weights.data() + first, inner, table.mean_value(first), columns,
              true, acc_.data(), columns);
  }
}

void RefRow::AddSummaries() {
  slopes_.resize(Index(SpanCount()));
  for (std::int64_t s = 0; s < SpanCount(); ++s) {
    const std::vector<float> offset = Offset(Of(s));
    squares_.push_back(Square(Of(s)));
    lengths_.push_back(std::sqrt(DotOf(offset.data(), offset.data(), shape_.key_dim)));
    finite_ = finite_ && std::isfinite(squares_.back()) && std::isfinite(lengths_.back());
  }
  SelectBranches();
  SelectLeaves();
  if (!finite_ || !std::isfinite(far_)) {
    leaves_.clear();
    for (std::int64_t s = 0; s < SpanCount(); ++s) {
      for (std::int64_t leaf = 0; leaf < Of(s).leaves(); ++leaf) {
        leaves_.push_back({.span = s, .number = leaf, .selected = true});
      }
    }
    return;
  }
  if (far_ > 0.0F) {
    max_ = largest_;
    sum_ = far_;
  }
  for (std::int64_t s = 0; s < SpanCount(); ++s) {
    AddValues(branches_, s, Of(s).branches(), kBlockTokens);
  }
  for (std::int64_t s = 0; s < SpanCount(); ++s) {
    const bool within = AlwaysLooksWithin(Of(s).branches().count());
    AddValues(leaves_, s, Of(s).summaries(), within ? kBlockTokens : kBranchLeaves);
  }
  const std::int64_t columns = layout_.padded_value_dim;
  std::int64_t next = 0;
  for (const SpanView& view : views_) {
    if (view.metric != next) continue;
    const float slope = slopes_[Index(next++)];
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
  for (const Node& leaf : leaves_) {
    if (leaf.selected) Read(Of(leaf.span).leaf(leaf.number));
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
