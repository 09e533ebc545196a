#include "engine/linear/saved_window.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "engine/block.h"
#include "engine/linear/saved_linear_state.h"
#include "engine/linear/sum_node.h"

namespace attnd::engine {
namespace {

void SaveNode(const LinearLayer& layer, const SumNode& node, ByteWriter& writer) {
  writer.Put(node.unmasked);
  for (std::int64_t head = 0; head < layer.shape.kv_heads; ++head) {
    const auto h = static_cast<std::size_t>(head);
    writer.Put(node.exponents[h]);
    writer.Put(node.shares[h]);
    if (node.level == 0) {
      PutTotals(layer, node.block.data() + head * layer.dims.totals(), writer);
    } else {
      PutTotals(layer, node.totals.data() + head * layer.dims.totals(), writer);
    }
  }
  for (const SumList* rest = node.rest.get(); rest != nullptr; rest = rest->next.get()) {
    SaveNode(layer, *rest->node, writer);
  }
}

class NodeLoader {
 public:
  NodeLoader(const LinearLayer& layer, ByteReader& reader) : layer_(layer), reader_(reader) {}

  // Null where what is stored is no node of this level. Takes no more memory than what has been
  // read, and one node.
  SumNodePtr Load(std::int64_t level) {
    if (reader_.left() < StoredBytes(level)) return nullptr;
    auto node = std::make_shared<SumNode>(layer_.dims, layer_.shape.kv_heads, level);
    std::fill_n(node->block.data(), node->block.size(), 0.0F);
    std::fill_n(node->totals.data(), node->totals.size(), 0.0);
    node->unmasked = reader_.Get<std::int64_t>();
    if (node->unmasked < 0 || node->unmasked > kBlockTokens << level) return nullptr;
    for (std::int64_t head = 0; head < layer_.shape.kv_heads; ++head) {
      if (!LoadHead(head, *node)) return nullptr;
    }
    // The list begins with the largest, and is made from its end.
    std::vector<SumNodePtr> rest;
    for (std::int64_t below = level - 1; below >= 0; --below) {
      rest.push_back(Load(below));
      if (rest.back() == nullptr) return nullptr;
    }
    for (; !rest.empty(); rest.pop_back()) {
      node->rest = std::make_shared<SumList>(SumList{std::move(rest.back()), node->rest});
    }
    return node;
  }

 private:
  std::int64_t StoredBytes(std::int64_t level) const {
    const std::size_t number = level == 0 ? sizeof(float) : sizeof(double);
    constexpr std::int64_t kPerHead = sizeof(std::int32_t) + sizeof(std::int64_t);
    return static_cast<std::int64_t>(sizeof(std::int64_t)) +
           layer_.shape.kv_heads *
               (kPerHead + StoredTotalsBytes(layer_, static_cast<std::int64_t>(number)));
  }

  // False where the numbers are larger than their share says, which must not exceed the whole.
  bool LoadHead(std::int64_t head, SumNode& node) {
    const auto h = static_cast<std::size_t>(head);
    node.exponents[h] = reader_.Get<std::int32_t>();
    node.shares[h] = reader_.Get<std::int64_t>();
    const std::int64_t at = head * layer_.dims.totals();
    const double largest = node.level == 0 ? GetTotals(layer_, reader_, node.block.data() + at)
                                           : GetTotals(layer_, reader_, node.totals.data() + at);
    return FitsExponent(layer_, node.exponents[h], node.unmasked) && node.shares[h] >= 0 &&
           node.shares[h] <= kWholeShare && ShareOf(largest) <= node.shares[h];
  }

  const LinearLayer& layer_;
  ByteReader& reader_;
};

}  // namespace

void SaveWindow(const LinearLayer& layer, const WindowState& state, ByteWriter& writer) {
  writer.Put(static_cast<std::uint8_t>(SavedSums::kWindow));
  writer.Put(state.window().most_blocks());
  state.window().ForNodes([&](const SumNode& node) { SaveNode(layer, node, writer); });
}

absl::Status LoadWindow(const LinearLayer& layer, std::int64_t sealed_tokens, ByteReader& reader,
                        WindowState& state) {
  if (reader.Get<std::uint8_t>() != static_cast<std::uint8_t>(SavedSums::kWindow) ||
      reader.Get<std::int64_t>() != state.window().most_blocks() || !reader.ok()) {
    return DamagedSums("they are another engine's, or of another window");
  }
  NodeLoader nodes(layer, reader);
  if (!state.window().Restore(sealed_tokens / kBlockTokens,
                              [&](std::int64_t level) { return nodes.Load(level); })) {
    return DamagedSums("a node of the window is cut off or out of range");
  }
  for (std::int64_t head = 0; head < layer.shape.kv_heads; ++head) {
    if (state.share(head) > kWholeShare) return DamagedSums("together they leave the range of f32");
  }
  state.Summarize();
  return absl::OkStatus();
}

}  // namespace attnd::engine
