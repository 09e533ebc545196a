// What an attention engine must do. Positions, tails, masks, digests and publication are written
// once, in layer_stream.h; an engine is the arithmetic between them.
//
// An answer for a query that sees tokens [0, p) is computed from the sealed state of the first
// 64 * floor((p - 1) / 64) tokens and the open block's 1 to 64 rows in score form. An engine must
// make it a pure function of its configuration, those tokens, and the query row: the bits may not
// depend on other queries of the call, on the order in which quanta run, on threads, or on rows
// after p.
//
// Thread safety: an Engine is immutable and may be used from any thread. A SealedState is immutable
// once it is published; before, one thread owns it. An AttendPlan: different chains may run on
// different threads at the same time; everything else is for one thread.
//
// Failure: as absl::Status where a function returns one. Whatever allocates may throw
// std::bad_alloc, after which the draft, state or plan that was worked on is to be dropped; nothing
// else crosses this border.
#ifndef ATTND_ENGINE_ENGINE_H_
#define ATTND_ENGINE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/block.h"
#include "engine/scratch.h"

namespace attnd::engine {

class ByteReader;
class ByteWriter;
class FeatureMap;

// The engine's memory of complete blocks. Each engine derives its own and casts back what it made.
class SealedState {
 public:
  virtual ~SealedState() = default;
  // Memory held, counting memory that is shared with other states in full.
  virtual std::int64_t bytes() const = 0;
};

// Per query row and head; the numbers are those of the contract's QueryFlag.
enum class RowFlag : std::uint8_t {
  kOk = 0,
  kEmpty = 1,
  kTiny = 2,
  kNonPositive = 3,
  kOverflow = 4
};

// How far an approximate engine may go in answering. Zeros: as its configuration says.
struct Accuracy {
  double target_error = 0.0;  // of each row, in the unit of EstimateView::errors; 0: none
  std::int64_t max_keys = 0;  // evaluated per row, beyond those that always are; 0: no budget
};

// How a row was answered; the numbers are those of the contract's AnswerPath.
enum class AnswerPath : std::uint8_t { kExact = 0, kIndex = 1, kCertified = 2, kPaper = 3 };

// What an approximate engine tells of its answers, for each query row and head; null where it is
// not wanted. Exact paths have errors of 0, masses of 1 and bounds that are the log-normalizer.
// Stated errors may change with what an engine has learned from audits; answers never do.
struct EstimateView {
  // [n, Hq]: L2 of the output's error relative to the root mean square of ||v - mean v|| over the
  // context, not exceeded by 95 % of rows.
  float* errors = nullptr;
  float* log_normalizer_bounds = nullptr;  // [n, Hq, 2], lower and upper
  float* exact_masses = nullptr;           // [n, Hq], share of the softmax weight evaluated exactly
  // [n, Hq]: keys, each once, and summaries of clusters whose score with the row was computed in
  // f32. Neither masked keys nor those that were only scanned in 8 bits.
  std::int64_t* keys_evaluated = nullptr;
  std::uint8_t* paths = nullptr;       // [n, Hq], AnswerPath
  std::uint8_t* calibrated = nullptr;  // [n, Hq], 1: errors rest on enough audited queries
  // [n, Hq], in the unit of `errors`: true errors of rows that were audited; others are not
  // written.
  float* audited_errors = nullptr;
};

// Where answers go; row i of the queries writes row i of each. Borrowed. `outputs` is required, the
// others are null where they are not wanted.
struct AnswerView {
  float* outputs = nullptr;               // [n, Hq, d_v]
  std::uint8_t* flags = nullptr;          // [n, Hq], RowFlag
  float* log_normalizers = nullptr;       // [n, Hq], exact
  float* numerators = nullptr;            // [n, Hq, d_v], linear
  float* denominators = nullptr;          // [n, Hq], linear
  std::int32_t* exponents = nullptr;      // [n, Hq], linear: of numerators and denominators
  std::int64_t top_k = 0;                 // exact; 0: none
  std::int64_t* top_positions = nullptr;  // [n, Hq, top_k]
  float* top_weights = nullptr;           // [n, Hq, top_k]
  EstimateView estimates = {};            // approximate() engines
};

// n queries that share one sealed state and one open block. Query i sees all tokens of `sealed` and
// the first `causal ? first_cut + i : tail.rows` rows of the tail (at most tail.rows). Borrowed.
struct QueryGroup {
  const SealedState* sealed = nullptr;
  std::int64_t sealed_tokens = 0;  // a multiple of 64
  TailView tail;
  const float* queries = nullptr;  // [n, Hq, d_k], finite, not yet scaled
  std::int64_t count = 0;          // n
  // [n], at least 0: where the queries stand in the stream. Null if the engine has no use for them,
  // if the caller gave none to an engine that can do without, or if causal, where each stands with
  // its token.
  const std::int64_t* positions = nullptr;
  Accuracy accuracy = {};  // for approximate() engines
  std::int64_t layer = 0;  // of its session: what is drawn at random is drawn for it
  bool causal = false;
  std::int64_t first_cut = 0;

  std::int64_t cut(std::int64_t query) const { return causal ? first_cut + query : tail.rows; }
  std::int64_t position(std::int64_t query) const {
    return causal ? sealed_tokens + first_cut + query - 1 : positions[query];
  }
};

// Work on one QueryGroup, cut into quanta of about a millisecond at most.
//
// Reset() lays out the work as a number of independent chains. A chain is run to its end by
// repeated Run() calls, one after another but from any thread; chains may run at the same time.
// When all chains have ended Finish() reduces them in a fixed order. A plan keeps its memory, so
// that resetting a warmed-up plan does not allocate.
class AttendPlan {
 public:
  virtual ~AttendPlan() = default;
  virtual void Reset(const QueryGroup& group, const AnswerView& answer) = 0;
  virtual std::int64_t chains() const = 0;
  // Runs one quantum of a chain. True when the chain has ended.
  virtual bool Run(std::int64_t chain, Scratch& scratch) = 0;
  virtual void Finish(Scratch& scratch) = 0;
};

enum class PositionUse { kNone, kOptional, kRequired };

class Engine {
 public:
  virtual ~Engine() = default;

  // "exact", "linear" or "kde".
  virtual const char* name() const = 0;
  virtual const LayerShape& shape() const = 0;

  // Features per key and kv-head; 0: the engine reads the keys themselves.
  std::int64_t feature_dim() const { return tail_layout().features; }

  // What the engine keeps of an open block's rows, and which gates it needs of a token.
  virtual TailLayout tail_layout() const { return {}; }

  // Whether denominators and partials come with powers of two.
  virtual bool scaled_features() const { return false; }

  // Whether answers depend on the positions of queries, and whether there is an answer without.
  virtual PositionUse position_use() const { return PositionUse::kNone; }

  // Whether answers are estimates, which follow an Accuracy and come with an EstimateView.
  virtual bool approximate() const { return false; }

  // c of the definition: features of a key, without padding; d_k where there is no map.
  virtual std::int64_t map_dim() const { return shape().key_dim; }

  // Multiply-adds of mapping a row of one head, beyond a few for each feature: a projection's.
  virtual std::int64_t map_operations() const { return 0; }

  // Rounds `count` values in place to the type in which the engine stores keys and values. Identity
  // unless storage is narrower than f32.
  virtual void RoundToStorage(float* values, std::int64_t count) const = 0;
  virtual bool rounds_storage() const = 0;

  // Whether numerators and denominators over two contexts add up to those over both.
  virtual bool mergeable() const { return true; }
  // Whether answers have denominators.
  virtual bool has_denominators() const { return false; }

  // The map of keys and queries of a linear engine; null for others.
  virtual const FeatureMap* feature_map() const { return nullptr; }

  // Rows [first, first + count) of the open block that begins at position `block`.
  struct TailRows {
    std::int64_t block = 0;
    std::int64_t first = 0;
    std::int64_t count = 0;
    RowMask valid = 0;  // of the whole block
  };
  // Fills in what the layout keeps beside the stored arrays, for rows whose stored arrays have just
  // been written; rows before them are complete. `sealed` is the state before the block.
  virtual void EncodeTail(const SealedState& /*sealed*/, const TailRows& /*rows*/, Tail& /*tail*/,
                          Scratch& /*scratch*/) const {}

  // A sealed state without tokens.
  virtual std::shared_ptr<SealedState> NewState() const = 0;

  // A sealed state that holds no rows although `first_block` blocks were sealed: where sealing
  // again the rows of a state begins whose FirstKeptBlock() that is. It may be asked once its own
  // FirstKeptBlock() is `first_block`; without a sliding window 0 alone comes to that.
  virtual std::shared_ptr<SealedState> NewStateAt(std::int64_t /*first_block*/) const {
    return NewState();
  }

  // A copy that may be changed while `state` stays as it is.
  virtual std::shared_ptr<SealedState> Clone(const SealedState& state) const = 0;

  // Folds complete blocks, in order, into an unpublished state that holds `sealed_tokens` tokens.
  // OutOfRange where features or sums leave the range of f32; the state is then unusable.
  virtual absl::Status Seal(SealedState& state, std::int64_t sealed_tokens,
                            std::span<const Block> blocks, Scratch& scratch) const = 0;

  // Whether a sealed state gives back the rows of its blocks as they were sealed, so that sealing
  // them again makes an equal state. The two functions below are for engines that do.
  virtual bool keeps_rows() const { return false; }
  // The first block that a query after those sealed can see: 0 without a sliding window.
  virtual std::int64_t FirstKeptBlock(const SealedState& /*state*/) const { return 0; }
  // Writes keys [64, H, d_k] and values [64, H, d_v] of a sealed block, at least the first that is
  // kept, and returns which rows are unmasked.
  virtual RowMask ReadBlock(const SealedState& /*state*/, std::int64_t /*block*/, float* /*keys*/,
                            float* /*values*/) const {
    return 0;
  }

  // The two functions below are for engines that keep sums instead, whatever their length. Stored
  // bytes hold no more than cannot be derived; their form is described beside each state.
  virtual absl::Status Save(const SealedState& /*state*/, ByteWriter& /*writer*/) const {
    return absl::UnimplementedError("the engine keeps rows, which are what is to be saved of it");
  }
  // What Save() wrote of a state of `sealed_tokens` tokens: one equal to it in every bit, not yet
  // published. DataLoss where the bytes are not those of such a state.
  virtual absl::StatusOr<std::shared_ptr<SealedState>> Load(std::int64_t /*sealed_tokens*/,
                                                            ByteReader& /*reader*/) const {
    return absl::UnimplementedError("the engine keeps rows, which are what is to be sealed again");
  }

  // Whether sealing a block may do more than store it, most of which PrepareSeal does before: then
  // blocks are best sealed one at a time, each once it is prepared.
  virtual bool prepares_seals() const { return false; }
  // Does a piece, of a millisecond or so, of what sealing the next block of `state` will need. True
  // when nothing is left that can be done before. Changes nothing that an answer shows, so that
  // anybody may do without: Seal does what is missing. The pieces done for one state are done for
  // all that share its work.
  virtual bool PrepareSeal(const SealedState& /*state*/, Scratch& /*scratch*/) const {
    return true;
  }
  // Multiply-adds that sealing spends beside storing blocks while a layer grows from `position` by
  // `count` tokens; saturates at 2^58.
  virtual std::int64_t UpkeepOperations(std::int64_t /*position*/, std::int64_t /*count*/) const {
    return 0;
  }

  // OutOfRange where the open block, sealed as it stands, would make Seal fail.
  virtual absl::Status CheckTail(const SealedState& state, const TailView& tail,
                                 Scratch& scratch) const = 0;

  // Rows, of features of a sum or of tokens, that a query at `position` is multiplied with.
  virtual std::int64_t RowsRead(std::int64_t /*position*/) const {
    return feature_dim() + kBlockTokens;
  }
  // How often sealing goes over the layer's sums beside adding a block to them.
  virtual std::int64_t seal_passes() const { return 1; }

  virtual std::unique_ptr<AttendPlan> NewPlan() const = 0;
  // Memory that a plan keeps for a group of `queries` queries over `tokens` tokens, at most 2^40.
  virtual std::int64_t PlanBytes(std::int64_t tokens, std::int64_t queries,
                                 std::int64_t top_k) const = 0;

  // Memory per layer: independent of its length (the open block included), and per token that is
  // kept.
  virtual std::int64_t fixed_bytes() const = 0;
  virtual std::int64_t bytes_per_token() const = 0;

  // The most memory that appending `count` tokens at `position` may take, a new open block
  // included.
  virtual std::int64_t AppendBytes(std::int64_t position, std::int64_t count) const = 0;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_ENGINE_H_
