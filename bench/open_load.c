/* Open-loop HTTP load: sends requests at a set rate whether the server keeps up or not.

   open_load PORT RATE SECONDS CONNECTIONS < requests

   Standard input holds one request after another, each preceded by its length in ASCII and a newline; they are sent in
   turn. Latencies count from when a request was due. A request that is due while every connection waits for an answer
   is not sent, and is counted. Prints one JSON object: requests due, sent, answered by class, latencies in milliseconds
   of accepted and of shed requests.
   Compiled code: at 50,000 requests a second it takes less than half of a core, so that it is not what is measured. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ANSWER_MAX = 65536, EVENTS = 1024, BUCKETS = 1000000 };

typedef struct {
    int fd;
    int busy;
    double due_at;
    size_t have;
    char *answer;
} Connection;

static struct { char *data; size_t length; } *requests;
static size_t request_count;
static Connection *connections;
static int *idle, idle_count;
/* Latency histograms in steps of 10 microseconds, up to 10 s. */
static uint32_t accepted[BUCKETS], shed[BUCKETS];
static long accepted_count, shed_count, limited_count, other_count, broken_count, without_retry_after;

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec * 1e-9;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void read_requests(void) {
    size_t room = 0, length;
    while (scanf("%zu", &length) == 1) {
        if (getchar() != '\n') die("request");
        if (request_count == room) requests = realloc(requests, (room = room ? 2 * room : 64) * sizeof *requests);
        requests[request_count].data = malloc(length);
        requests[request_count].length = length;
        if (fread(requests[request_count].data, 1, length, stdin) != length) die("request");
        request_count++;
    }
    if (!request_count) { fprintf(stderr, "no requests on standard input\n"); exit(1); }
}

static void connect_one(Connection *connection, int poll, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    connection->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connection->fd < 0) die("socket");
    if (connect(connection->fd, (struct sockaddr *)&to, sizeof to)) die("connect");
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(connection->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (epoll_ctl(poll, EPOLL_CTL_ADD, connection->fd, &event)) die("epoll_ctl");
    connection->busy = 0;
    connection->have = 0;
}

static void record(uint32_t *histogram, double seconds) {
    long bucket = (long)(seconds * 1e5);
    histogram[bucket < 0 ? 0 : bucket >= BUCKETS ? BUCKETS - 1 : bucket]++;
}

/* Whether the answer is complete; if so it is counted. */
static int finish(Connection *connection, double at) {
    char *end = memmem(connection->answer, connection->have, "\r\n\r\n", 4);
    if (!end) return 0;
    *end = 0;
    char *length = strcasestr(connection->answer, "\r\ncontent-length:");
    size_t body = length ? strtoul(length + 17, NULL, 10) : 0;
    int status = atoi(connection->answer + 9);
    if (connection->have < (size_t)(end - connection->answer) + 4 + body) { *end = '\r'; return 0; }
    double took = at - connection->due_at;
    if (status >= 200 && status < 300) { accepted_count++; record(accepted, took); }
    else if (status == 503 || status == 429) {
        if (status == 503) shed_count++; else limited_count++;
        record(shed, took);
        if (!strcasestr(connection->answer, "\r\nretry-after:")) without_retry_after++;
    } else other_count++;
    return 1;
}

static double percentile(uint32_t *histogram, double share) {
    uint64_t total = 0, seen = 0;
    for (int i = 0; i < BUCKETS; i++) total += histogram[i];
    if (!total) return -1;
    for (int i = 0; i < BUCKETS; i++) if ((seen += histogram[i]) >= share * total) return i * 0.01;
    return BUCKETS * 0.01;
}

int main(int count, char **given) {
    if (count != 5) { fprintf(stderr, "usage: open_load PORT RATE SECONDS CONNECTIONS < requests\n"); return 2; }
    int port = atoi(given[1]), wanted = atoi(given[4]), poll = epoll_create1(0);
    double rate = atof(given[2]), seconds = atof(given[3]);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    read_requests();
    connections = calloc(wanted, sizeof *connections);
    idle = calloc(wanted, sizeof *idle);
    for (int i = 0; i < wanted; i++) {
        connections[i].answer = malloc(ANSWER_MAX + 1);
        connect_one(&connections[i], poll, port);
        idle[idle_count++] = i;
    }
    double began = now(), end = began + seconds;
    long sent = 0, handled = 0, answered_after = 0;
    size_t next = 0;
    struct epoll_event events[EVENTS];
    for (;;) {
        double at = now();
        long due = (long)((at < end ? at - began : seconds) * rate);
        for (; handled < due && idle_count; handled++) {
            Connection *connection = &connections[idle[--idle_count]];
            size_t place = next++ % request_count;
            connection->busy = 1;
            connection->have = 0;
            connection->due_at = began + handled / rate;
            sent++;
            if (write(connection->fd, requests[place].data, requests[place].length) != (ssize_t)requests[place].length) {
                broken_count++;
                close(connection->fd);
                connect_one(connection, poll, port);
                idle[idle_count++] = connection - connections;
            }
        }
        /* Without a free connection. */
        handled = due;
        /* Half a second for answers that are under way. */
        if (at >= end + 0.5 || (at >= end && idle_count == wanted)) break;
        int ready = epoll_wait(poll, events, EVENTS, 1);
        at = now();
        for (int i = 0; i < ready; i++) {
            Connection *connection = events[i].data.ptr;
            ssize_t got = read(connection->fd, connection->answer + connection->have, ANSWER_MAX - connection->have);
            if (got < 0 && errno == EAGAIN) continue;
            if (got <= 0) {
                if (connection->busy) broken_count++;
                close(connection->fd);
                int was_busy = connection->busy;
                connect_one(connection, poll, port);
                if (was_busy) idle[idle_count++] = connection - connections;
                continue;
            }
            connection->have += got;
            connection->answer[connection->have] = 0;
            if (connection->busy && finish(connection, at)) {
                connection->busy = 0;
                if (at > end) answered_after++;
                idle[idle_count++] = connection - connections;
            }
        }
    }
    struct rusage own;
    getrusage(RUSAGE_SELF, &own);
    double cpu = own.ru_utime.tv_sec + own.ru_stime.tv_sec + (own.ru_utime.tv_usec + own.ru_stime.tv_usec) * 1e-6;
    printf("{\"due\": %.0f, \"sent\": %ld, \"accepted\": %ld, \"shed\": %ld, \"limited\": %ld, \"other\": %ld, "
           "\"broken\": %ld, \"late\": %ld, \"without_retry_after\": %ld, \"own_cpu_share\": %.3f, "
           "\"accepted_p50_ms\": %.2f, \"accepted_p99_ms\": %.2f, \"shed_p50_ms\": %.2f, \"shed_p99_ms\": %.2f}\n",
           rate * seconds, sent, accepted_count, shed_count, limited_count, other_count, broken_count, answered_after,
           without_retry_after, cpu / seconds, percentile(accepted, 0.5), percentile(accepted, 0.99),
           percentile(shed, 0.5), percentile(shed, 0.99));
    return 0;
}
