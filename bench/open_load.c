/* Open-loop HTTP load: sends requests at a set rate whether the server keeps up or not.

   open_load PORT RATE SECONDS CONNECTIONS < requests

   A request is sent as it stands, on a connection that waits for no answer.
   Compiled code: at 50,000 requests a second it takes less than half of a core, so that it is not what is measured. */

#include "open_load.h"

enum { ANSWER_MAX = 65536 };

typedef struct {
    int fd;
    int busy;
    double due_at;
    size_t have;
    char *answer;
} Connection;

static Connection *connections;
static int *idle, idle_count;

static void connect_one(Connection *connection, int poll, int port) {
    connection->fd = connect_to(port);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (epoll_ctl(poll, EPOLL_CTL_ADD, connection->fd, &event)) die("epoll_ctl");
    connection->busy = 0;
    connection->have = 0;
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

int main(int count, char **given) {
    if (count != 5) { fprintf(stderr, "usage: open_load PORT RATE SECONDS CONNECTIONS < requests\n"); return 2; }
    int port = atoi(given[1]), wanted = atoi(given[4]), poll = epoll_create1(0);
    double rate = atof(given[2]), seconds = atof(given[3]);
    raise_file_limit();
    read_requests();
    connections = calloc(wanted, sizeof *connections);
    idle = calloc(wanted, sizeof *idle);
    for (int i = 0; i < wanted; i++) {
        connections[i].answer = malloc(ANSWER_MAX + 1);
        connect_one(&connections[i], poll, port);
        idle[idle_count++] = i;
    }
    double began = now(), end = began + seconds;
    long handled = 0;
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
            sent_count++;
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
    report(rate, seconds);
    return 0;
}
