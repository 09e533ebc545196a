# Every external library, found once. Use these targets:
#   absl::*  gRPC::grpc++  gRPC::grpc++_reflection  gRPC::grpc_cpp_plugin
#   protobuf::libprotobuf  protobuf::protoc  DNNL::dnnl
#   prometheus-cpp::core  prometheus-cpp::pull  spdlog::spdlog  CLI11::CLI11
#   PkgConfig::hwy  PkgConfig::xxhash  OpenSSL::Crypto  ZLIB::ZLIB  Threads::Threads  attnd::gomp
#   RocksDB::rocksdb-shared
#   attnd::allocator, for programs
#   GTest::gtest  GTest::gmock  GTest::gtest_main  benchmark::benchmark

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

# Protobuf must come before gRPC: Debian ships no protobuf package configuration, and gRPC's own asks
# for targets that only the find module defines.
find_package(Protobuf REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(dnnl CONFIG REQUIRED)  # needs ocl-icd-opencl-dev: Debian's build links the OpenCL loader
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(ZLIB REQUIRED)
find_package(RocksDB CONFIG REQUIRED)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy libhwy-contrib)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)

# The OpenMP runtime that Debian's oneDNN runs on, whatever the compiler: find_package(OpenMP) would
# give clang its own, whose settings oneDNN does not see.
find_library(ATTND_GOMP NAMES libgomp.so.1 REQUIRED)
add_library(attnd::gomp SHARED IMPORTED)
set_target_properties(attnd::gomp PROPERTIES IMPORTED_LOCATION "${ATTND_GOMP}")

# The allocator of the programs; a sanitizer brings its own. glibc's hands the memory of a large
# message back to the system and takes it again page by page, and keeps what sessions gave back in
# the arena of whichever thread held it: p50 of a 1 MiB Append 800 us instead of 930. Where sessions
# of unlike sizes come and go it keeps up to half as much again (deploy/README.md bounds it). Nothing refers to its symbols.
find_library(ATTND_TCMALLOC NAMES tcmalloc_minimal REQUIRED)
add_library(attnd::allocator INTERFACE IMPORTED)
if(NOT ATTND_SANITIZE)
  target_link_libraries(attnd::allocator INTERFACE -Wl,--push-state,--no-as-needed
                                                   "${ATTND_TCMALLOC}" -Wl,--pop-state)
endif()

if(ATTND_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(ATTND_BUILD_BENCH)
  find_package(benchmark CONFIG REQUIRED)
endif()
