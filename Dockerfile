# The server as an image: built with Debian's libraries, run as a user without rights, with its data in /var/lib/signalbox.
#
#   docker build --tag signalbox .
#   docker run --publish 127.0.0.1:11215-11217:11215-11217 --volume signalbox:/var/lib/signalbox signalbox
FROM rust:1.95-bookworm AS build
WORKDIR /source
COPY . .
RUN cargo build --locked --profile dist --bin signalbox

FROM debian:bookworm-slim
COPY --from=build /source/target/dist/signalbox /usr/bin/signalbox
COPY etc/docker.toml /etc/signalbox.toml
# The numbers are those that volumes and Kubernetes' runAsUser have to use.
RUN groupadd --system --gid 11215 signalbox \
    && useradd --system --uid 11215 --gid signalbox --no-create-home --home-dir /var/lib/signalbox signalbox \
    && install --directory --owner signalbox --group signalbox --mode 700 /var/lib/signalbox
USER 11215:11215
VOLUME /var/lib/signalbox
# Counters, semaphores, and HTTP for metrics and the status page.
EXPOSE 11215 11216 11217
# As in signalbox.service: one heap for all threads.
ENV GLIBC_TUNABLES=glibc.malloc.arena_max=1:glibc.malloc.mxfast=0
# Where the server listens, and how, is in its configuration. With another file, give its path here too
# (docker run --health-cmd).
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["signalbox", "ping", "--config", "/etc/signalbox.toml", "--timeout", "2"]
ENTRYPOINT ["signalbox"]
CMD ["serve", "--config", "/etc/signalbox.toml"]
