// A directory for a store on disk, which goes with the object, and what tests do to its files.
#ifndef ATTND_TESTS_SERVER_STORE_STORE_DIRECTORY_H_
#define ATTND_TESTS_SERVER_STORE_STORE_DIRECTORY_H_

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/store/rocksdb_store.h"

namespace attnd::server {

class StoreDirectory {
 public:
  StoreDirectory() : path_(::testing::TempDir() + "/attnd_store_XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  explicit StoreDirectory(std::string path) : path_(std::move(path)) {
    std::filesystem::create_directories(path_);
  }
  ~StoreDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  StoreDirectory(const StoreDirectory&) = delete;
  StoreDirectory& operator=(const StoreDirectory&) = delete;

  const std::string& path() const { return path_; }

  std::unique_ptr<RocksDbStore> OpenOrDie() const {
    auto store = RocksDbStore::Open({.directory = path_});
    if (!store.ok()) {
      std::fprintf(stderr, "%s\n", store.status().ToString().c_str());
      std::abort();
    }
    return *std::move(store);
  }

  // Files whose names end so, the newest last.
  std::vector<std::filesystem::path> Files(const std::string& extension) const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      if (entry.path().extension() == extension) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  void CopyTo(const StoreDirectory& other) const {
    std::filesystem::copy(path_, other.path(),
                          std::filesystem::copy_options::recursive |
                              std::filesystem::copy_options::overwrite_existing);
  }

 private:
  std::string path_;
};

// Inverts the bits of one byte.
inline void FlipByte(const std::filesystem::path& file, std::int64_t offset) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(offset);
  const int byte = stream.get();
  ASSERT_TRUE(stream.good()) << file << " at " << offset;
  stream.seekp(offset);
  stream.put(static_cast<char>(~byte));
  ASSERT_TRUE(stream.good());
}

// Where `text` begins in the file; -1 where it does not.
inline std::int64_t OffsetOf(const std::filesystem::path& file, const std::string& text) {
  std::ifstream stream(file, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(stream)), {});
  const auto offset = bytes.find(text);
  return offset == std::string::npos ? -1 : static_cast<std::int64_t>(offset);
}

}  // namespace attnd::server

#endif  // ATTND_TESTS_SERVER_STORE_STORE_DIRECTORY_H_
