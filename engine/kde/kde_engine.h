// Softmax attention, estimated by kernel density methods: softmax(scale q k^T) v over all visible
// tokens, within an error that is stated with each row.
//
// Tokens are kept in an index that grows with them (index_state.h): clusters of 64 keys with their
// summaries, of which a row reads those that it cannot do without (index_plan.h). Mode AUTO reads
// everything in short contexts and for rows that would read much; INDEX asks the index wherever
// there is one. A query whose position is given always reads the cluster of its own token.
//
// Stated errors rest on the context's own keys, asked as queries, until 200 answers of a kv-head
// and of the kind that is asked for have been audited (index/row_audit.h); from then on they cover
// 95 % of the errors of queries like those, and say so (calibrated is 1). That is no guarantee:
// queries of another sort may err more until they have been audited in their turn. Audits never
// change an answer. Log-normalizer bounds are rigorous but for f32's rounding.
//
// Numerics: f32; what is evaluated exactly has the numerics of engine/exact/exact_engine.h.
// Promise: a row's bits depend on nothing but the configuration, the visible tokens, the query row,
// its position and the accuracy asked for. Merging: partial answers merge as those of the exact
// engine. Thread safety and failures: engine.h.
#ifndef ATTND_ENGINE_KDE_KDE_ENGINE_H_
#define ATTND_ENGINE_KDE_KDE_ENGINE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/block.h"
#include "engine/engine.h"
#include "engine/engine_config.h"

namespace attnd::engine {

// `shape` is valid (MakeEngine checks it). INVALID_ARGUMENT where `config` is out of range.
absl::StatusOr<std::unique_ptr<const Engine>> MakeKdeEngine(const LayerShape& shape,
                                                            const KdeConfig& config);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_KDE_ENGINE_H_
