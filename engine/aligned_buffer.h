// A fixed-size array of trivially copyable elements on a 64-byte boundary, so that vector loads
// never straddle a cache line. Owns its memory; movable, not copyable. Not synchronised.
#ifndef ATTND_ENGINE_ALIGNED_BUFFER_H_
#define ATTND_ENGINE_ALIGNED_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

namespace attnd::engine {

inline constexpr std::size_t kBufferAlignment = 64;

template <typename T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedBuffer() = default;

  // `count` elements, zero bytes throughout.
  explicit AlignedBuffer(std::int64_t count) : data_(Allocate(count)), size_(count) {
    if (count > 0) std::memset(data_.get(), 0, Bytes(count));
  }

  static AlignedBuffer Uninitialized(std::int64_t count) {
    AlignedBuffer buffer;
    buffer.data_.reset(Allocate(count));
    buffer.size_ = count;
    return buffer;
  }

  static AlignedBuffer CopyOf(const AlignedBuffer& other) {
    AlignedBuffer copy = Uninitialized(other.size());
    if (other.size() > 0) std::memcpy(copy.data(), other.data(), Bytes(other.size()));
    return copy;
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::int64_t size() const { return size_; }
  std::int64_t bytes() const { return size_ * static_cast<std::int64_t>(sizeof(T)); }

 private:
  struct Free {
    void operator()(T* p) const { ::operator delete[](p, std::align_val_t{kBufferAlignment}); }
  };

  static std::size_t Bytes(std::int64_t count) {
    return static_cast<std::size_t>(count) * sizeof(T);
  }

  static T* Allocate(std::int64_t count) {
    if (count == 0) return nullptr;
    return static_cast<T*>(::operator new[](Bytes(count), std::align_val_t{kBufferAlignment}));
  }

  std::unique_ptr<T[], Free> data_;
  std::int64_t size_ = 0;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_ALIGNED_BUFFER_H_
