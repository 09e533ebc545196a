// How much a message makes the server compute, estimated from its sizes before it is queued, and
// what is little enough to begin on the thread on which the message arrived.
//
// Handing a job to a worker costs two changes of threads, 50 to 100 us where the worker slept, and
// takes the data of a large message from one core's cache to another's. The estimates need not be
// exact: Scheduler::kHereNanos bounds what a wrong one can cost.
#ifndef ATTND_SERVER_WORK_H_
#define ATTND_SERVER_WORK_H_

#include <cstdint>

#include "engine/engine.h"

namespace attnd::server {

// Multiply-adds, of which a core does 13 billion in a second when it reads from its caches.
// Saturates far above every limit, so that sums of a few do not overflow.
using Operations = std::int64_t;

// 40 us: less than handing it over would cost.
inline constexpr Operations kBriefOperations = 1 << 19;
// About a millisecond, of which half is done on the spot; the Append of 1 MiB to one head of d = 64
// takes 2^23.6.
inline constexpr Operations kShortOperations = 1 << 24;

// Queries (token rows with all their heads) against a layer at `position`; `top_k` as in
// AnswerOptions.
Operations AttendOperations(const engine::Engine& engine, std::int64_t position,
                            std::int64_t queries, std::int64_t top_k);

// Far beyond what can be held, and far from where sums of positions and bytes overflow. What stands
// beyond will not be applied.
inline constexpr std::int64_t kMostPosition = std::int64_t{1} << 48;

// Tokens that are checked, digested, and copied or folded, at `position`, which may be any number a
// client sends.
Operations AppendOperations(const engine::Engine& engine, std::int64_t position,
                            std::int64_t tokens);

// Tokens of a mutation that make a quantum of a millisecond or less, whole blocks and at least one;
// one where the engine prepares seals, since each block has to be prepared before.
std::int64_t AppendQuantumTokens(const engine::Engine& engine);

}  // namespace attnd::server

#endif  // ATTND_SERVER_WORK_H_
