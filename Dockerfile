# The image of attnd: the server and its command line client on Debian's libraries.
#
#   docker build --tag attnd .
#   docker run --rm --read-only --cap-drop=ALL --publish 127.0.0.1:50051:50051 attnd
#
# Runs as user 10001, writes no file, logs to standard error, and stops cleanly on SIGTERM. Options of
# attnd go behind the image's name, or as ATTND_* into the environment. deploy/README.md tells more.

FROM debian:bookworm-slim AS build
WORKDIR /src
# A layer of its own: packages change less often than the source.
COPY scripts/setup.sh scripts/
RUN scripts/setup.sh --build
COPY . .
RUN cmake --preset release -DATTND_BUILD_TESTS=OFF -DATTND_BUILD_BENCH=OFF -DATTND_HEADER_CHECK=OFF \
  && cmake --build --preset release --target attnd attnctl \
  && strip build/release/server/attnd build/release/client/attnctl/attnctl

FROM debian:bookworm-slim
LABEL org.opencontainers.image.title="attnd" \
  org.opencontainers.image.description="Long-context attention service for CPU machines" \
  org.opencontainers.image.licenses="Apache-2.0"
RUN apt-get update \
  && apt-get install -y --no-install-recommends \
    libabsl20220623 libcivetweb1 libdnnl2 libgomp1 libgrpc++1.51 libhwy1 libprometheus-cpp-core1.0 \
    libprotobuf32 librocksdb7.8 libspdlog1.10 libtcmalloc-minimal4 libxxhash0 \
  && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
COPY LICENSE /usr/share/doc/attnd/
COPY --from=build /src/build/release/server/attnd /src/build/release/client/attnctl/attnctl /usr/local/bin/
# attnd listens on loopback unless told otherwise, which nobody outside of a container could reach.
ENV ATTND_LISTEN=0.0.0.0:50051 \
  ATTND_HTTP_LISTEN=0.0.0.0:9090 \
  ATTND_LOG_FORMAT=json
USER 10001:10001
# A library that is missing fails the build, not the first start.
RUN ["attnd", "--version"]
RUN ["attnctl", "--help"]
EXPOSE 50051 9090
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 CMD ["attnctl", "health"]
ENTRYPOINT ["attnd"]
