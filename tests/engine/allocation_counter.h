// Counts what the whole test program allocates, by replacing the global operator new.
#ifndef ATTND_TESTS_ENGINE_ALLOCATION_COUNTER_H_
#define ATTND_TESTS_ENGINE_ALLOCATION_COUNTER_H_

#include <cstdint>

namespace attnd::engine {

// Allocations by operator new of the calling thread so far.
std::int64_t AllocationsOfThisThread();

}  // namespace attnd::engine

#endif  // ATTND_TESTS_ENGINE_ALLOCATION_COUNTER_H_
