// Writes that a store applies together: all of them or none.
//
// They count in the order in which they were added, so that a later one overrides an earlier one.
// Not synchronised.
#ifndef ATTND_SERVER_STORE_WRITE_BATCH_H_
#define ATTND_SERVER_STORE_WRITE_BATCH_H_

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace attnd::server {

class WriteBatch {
 public:
  enum class Kind { kPut, kDelete, kDeleteRange };
  struct Write {
    Kind kind = Kind::kPut;
    std::string key;
    std::string value;  // of a put; the key that a range ends before
  };
  // What a write takes beside its key and value: its place in the list and in the store's log.
  static constexpr std::int64_t kWriteBytes = 96;

  void Put(std::string key, std::string value) {
    Add({Kind::kPut, std::move(key), std::move(value)});
  }
  // Nothing happens where there is no such key.
  void Delete(std::string key) { Add({Kind::kDelete, std::move(key), {}}); }
  // Deletes the keys from `from` up to, but without, `until`; none where `until` is not greater.
  void DeleteRange(std::string from, std::string until) {
    Add({Kind::kDeleteRange, std::move(from), std::move(until)});
  }
  // Adds the writes of `other`, which is empty afterwards.
  void Take(WriteBatch& other) {
    writes_.insert(writes_.end(), std::make_move_iterator(other.writes_.begin()),
                   std::make_move_iterator(other.writes_.end()));
    bytes_ += other.bytes_;
    other.writes_.clear();
    other.bytes_ = 0;
  }

  const std::vector<Write>& writes() const { return writes_; }
  bool empty() const { return writes_.empty(); }
  // Memory, roughly: keys, values and kWriteBytes for each write.
  std::int64_t bytes() const { return bytes_; }

 private:
  void Add(Write write) {
    bytes_ += kWriteBytes + static_cast<std::int64_t>(write.key.size() + write.value.size());
    writes_.push_back(std::move(write));
  }

  std::vector<Write> writes_;
  std::int64_t bytes_ = 0;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_STORE_WRITE_BATCH_H_
