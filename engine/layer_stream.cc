#include "engine/layer_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "engine/state_digest.h"

namespace attnd::engine {
namespace {

// Blocks that are brought to stored form and handed to the engine at once. Eight blocks of one head
// of d = 64 are 256 KiB: they stay in the second-level cache between the passes.
constexpr std::int64_t kSealBatch = 8;

void CopyRows(const float* rows, std::int64_t first, std::int64_t count, std::int64_t row,
              AlignedBuffer<float>& to) {
  if (row == 0) return;
  std::memcpy(to.data() + first * row, rows, static_cast<std::size_t>(count * row) * sizeof(float));
}

}  // namespace

std::int64_t LayerState::bytes() const {
  return (sealed ? sealed->bytes() : 0) + (tail ? tail->bytes() : 0);
}

std::shared_ptr<const LayerState> EmptyLayer(const Engine& engine) {
  auto state = std::make_shared<LayerState>();
  state->sealed = engine.NewState();
  return state;
}

Digest LayerDigest(const Engine& engine, const LayerState& state) {
  if (state.tail_rows == 0) return state.digest;
  const Tail& tail = *state.tail;
  const Block rows = {tail.keys.data(),       tail.values.data(), state.tail_valid,
                      tail.log_decays.data(), tail.rates.data(),  &tail};
  return ChainBlock(state.digest, engine.shape(), engine.tail_layout(), rows, state.tail_rows);
}

LayerDraft::LayerDraft(const Engine& engine, const std::shared_ptr<const LayerState>& base)
    : engine_(engine), state_(*base) {}

std::int64_t LayerDraft::open_rows() const {
  return state_.tail_rows == kBlockTokens ? kBlockTokens : kBlockTokens - state_.tail_rows;
}

SealedState& LayerDraft::OwnSealed() {
  if (!own_sealed_) {
    own_sealed_ = engine_.Clone(*state_.sealed);
    state_.sealed = own_sealed_;
  }
  return *own_sealed_;
}

absl::Status LayerDraft::SealTail(Scratch& scratch) {
  const Tail& tail = *state_.tail;
  const Block block = {tail.keys.data(),       tail.values.data(), state_.tail_valid,
                       tail.log_decays.data(), tail.rates.data(),  &tail};
  absl::Status sealed =
      engine_.Seal(OwnSealed(), state_.sealed_tokens, std::span(&block, 1), scratch);
  if (!sealed.ok()) return sealed;
  state_.digest = ChainBlock(state_.digest, engine_.shape(), engine_.tail_layout(), block);
  state_.sealed_tokens += kBlockTokens;
  state_.tail_rows = 0;
  state_.tail_valid = 0;
  state_.tail = nullptr;
  return absl::OkStatus();
}

absl::Status LayerDraft::SealBlocks(const TokenBatch& batch, std::int64_t first,
                                    std::int64_t blocks, TokenDigester* digester,
                                    Scratch& scratch) {
  while (blocks > 0) {
    Scratch::Frame frame(scratch);
    std::array<Block, kSealBatch> sealed;
    const std::int64_t now = std::min(blocks, kSealBatch);
    for (std::int64_t b = 0; b < now; ++b) {
      absl::StatusOr<TokenRows> rows =
          StoredRows(engine_, batch, first + b * kBlockTokens, kBlockTokens, scratch);
      if (!rows.ok()) return rows.status();
      if (digester != nullptr) digester->Update(engine_, *rows);
      sealed[static_cast<std::size_t>(b)] = {rows->keys,       rows->values, rows->valid,
                                             rows->log_decays, rows->rates,  nullptr};
    }
    absl::Status status =
        engine_.Seal(OwnSealed(), state_.sealed_tokens,
                     std::span(sealed.data(), static_cast<std::size_t>(now)), scratch);
    if (!status.ok()) return status;
    for (std::int64_t b = 0; b < now; ++b) {
      state_.digest = ChainBlock(state_.digest, engine_.shape(), engine_.tail_layout(),
                                 sealed[static_cast<std::size_t>(b)]);
    }
    state_.sealed_tokens += now * kBlockTokens;
    first += now * kBlockTokens;
    blocks -= now;
  }
  return absl::OkStatus();
}

void LayerDraft::WriteTail(const TokenRows& rows, Scratch& scratch) {
  const LayerShape& shape = engine_.shape();
  const TailLayout layout = engine_.tail_layout();
  if (!state_.tail) state_.tail = std::make_shared<Tail>(shape, layout);
  Tail& tail = *state_.tail;
  CopyRows(rows.keys, state_.tail_rows, rows.count, shape.key_row(), tail.keys);
  CopyRows(rows.values, state_.tail_rows, rows.count, shape.value_row(), tail.values);
  CopyRows(rows.log_decays, state_.tail_rows, rows.count, layout.log_decays, tail.log_decays);
  CopyRows(rows.rates, state_.tail_rows, rows.count, layout.rates, tail.rates);
  state_.tail_valid |= rows.valid << state_.tail_rows;
  engine_.EncodeTail(*state_.sealed,
                     {state_.sealed_tokens, state_.tail_rows, rows.count, state_.tail_valid}, tail,
                     scratch);
  state_.tail_rows += rows.count;
}

absl::Status LayerDraft::Append(const TokenBatch& batch, std::int64_t first, std::int64_t count,
                                TokenDigester* digester, Scratch& scratch) {
  while (count > 0) {
    if (state_.tail_rows == kBlockTokens) {
      absl::Status sealed = SealTail(scratch);
      if (!sealed.ok()) return sealed;
    }
    // Blocks that are complete and have a successor need not pass through the tail.
    if (state_.tail_rows == 0 && count > kBlockTokens) {
      const std::int64_t blocks = (count - 1) / kBlockTokens;
      absl::Status sealed = SealBlocks(batch, first, blocks, digester, scratch);
      if (!sealed.ok()) return sealed;
      first += blocks * kBlockTokens;
      count -= blocks * kBlockTokens;
    }
    Scratch::Frame frame(scratch);
    const std::int64_t now = std::min(count, kBlockTokens - state_.tail_rows);
    absl::StatusOr<TokenRows> rows = StoredRows(engine_, batch, first, now, scratch);
    if (!rows.ok()) return rows.status();
    if (digester != nullptr) digester->Update(engine_, *rows);
    WriteTail(*rows, scratch);
    first += now;
    count -= now;
  }
  return absl::OkStatus();
}

bool LayerDraft::PrepareSeal(std::int64_t count, Scratch& scratch) const {
  return state_.tail_rows + count <= kBlockTokens || engine_.PrepareSeal(*state_.sealed, scratch);
}

absl::Status LayerDraft::CheckTail(Scratch& scratch) const {
  return engine_.CheckTail(*state_.sealed, state_.tail_view(), scratch);
}

std::shared_ptr<const LayerState> LayerDraft::Finish() {
  own_sealed_ = nullptr;
  return std::make_shared<const LayerState>(std::move(state_));
}

QueryGroup AttendGroup(const LayerState& state, const float* queries, std::int64_t count,
                       const std::int64_t* positions) {
  QueryGroup group;
  group.sealed = state.sealed.get();
  group.sealed_tokens = state.sealed_tokens;
  group.tail = state.tail_view();
  group.queries = queries;
  group.positions = positions;
  group.count = count;
  return group;
}

QueryGroup StepGroup(const LayerState& state, const float* queries, std::int64_t count) {
  QueryGroup group = AttendGroup(state, queries, count);
  group.causal = true;
  group.first_cut = state.tail_rows - count + 1;
  return group;
}

}  // namespace attnd::engine
