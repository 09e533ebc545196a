// Lets one allocation of a test fail, by replacing the global operator new of the whole program.
#ifndef ATTND_TESTS_SERVER_FAILING_ALLOCATION_H_
#define ATTND_TESTS_SERVER_FAILING_ALLOCATION_H_

#include <cstdint>

namespace attnd::server {

// While it lives, the calling thread's allocation number `number` (the first is 0) throws
// std::bad_alloc. One at a time per thread.
class FailingAllocation {
 public:
  explicit FailingAllocation(std::int64_t number);
  ~FailingAllocation();
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;

  // Whether there were that many.
  bool failed() const;
};

}  // namespace attnd::server

#endif  // ATTND_TESTS_SERVER_FAILING_ALLOCATION_H_
