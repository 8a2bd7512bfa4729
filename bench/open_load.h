/* What the open-loop load generators share: the requests on standard input, the clock, and the report.

   Standard input holds one request after another, each preceded by its length in ASCII and a newline; they are sent in
   turn. Latencies count from when a request was due. A request that is due while every place waits for an answer is
   not sent, and is counted. The report is one JSON object: requests due, sent, answered by class, latencies in
   milliseconds of accepted and of shed requests. */

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

enum { EVENTS = 1024, BUCKETS = 1000000 };

static struct { char *data; size_t length; } *requests;
static size_t request_count;
/* Latency histograms in steps of 10 microseconds, up to 10 s. */
static uint32_t accepted[BUCKETS], shed[BUCKETS];
static long accepted_count, shed_count, limited_count, other_count, broken_count, without_retry_after;
static long sent_count, answered_after;

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

static void raise_file_limit(void) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

static int connect_to(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) die("socket");
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void record(uint32_t *histogram, double seconds) {
    long bucket = (long)(seconds * 1e5);
    histogram[bucket < 0 ? 0 : bucket >= BUCKETS ? BUCKETS - 1 : bucket]++;
}

static double percentile(uint32_t *histogram, double share) {
    uint64_t total = 0, seen = 0;
    for (int i = 0; i < BUCKETS; i++) total += histogram[i];
    if (!total) return -1;
    for (int i = 0; i < BUCKETS; i++) if ((seen += histogram[i]) >= share * total) return i * 0.01;
    return BUCKETS * 0.01;
}

static void report(double rate, double seconds) {
    struct rusage own;
    getrusage(RUSAGE_SELF, &own);
    double cpu = own.ru_utime.tv_sec + own.ru_stime.tv_sec + (own.ru_utime.tv_usec + own.ru_stime.tv_usec) * 1e-6;
    printf("{\"due\": %.0f, \"sent\": %ld, \"accepted\": %ld, \"shed\": %ld, \"limited\": %ld, \"other\": %ld, "
           "\"broken\": %ld, \"late\": %ld, \"without_retry_after\": %ld, \"own_cpu_share\": %.3f, "
           "\"accepted_p50_ms\": %.2f, \"accepted_p99_ms\": %.2f, \"shed_p50_ms\": %.2f, \"shed_p99_ms\": %.2f}\n",
           rate * seconds, sent_count, accepted_count, shed_count, limited_count, other_count, broken_count,
           answered_after, without_retry_after, cpu / seconds, percentile(accepted, 0.5), percentile(accepted, 0.99),
           percentile(shed, 0.5), percentile(shed, 0.99));
}
