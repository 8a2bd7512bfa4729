/* Open-loop gRPC load over HTTP/2: makes unary calls at a set rate whether the server keeps up or not.

   open_load_grpc PORT RATE SECONDS CONNECTIONS STREAMS < requests

   A request is a line with the path of the method, followed by the encoded message. Each connection has at most STREAMS
   calls in progress. A call is accepted if the trailers have grpc-status 0, and shed if they have RESOURCE_EXHAUSTED or
   UNAVAILABLE, or if the stream was refused (REFUSED_STREAM). Needs libnghttp2. */

#include "open_load.h"
#include <nghttp2/nghttp2.h>

enum { ROOM = 1 << 16, RESOURCE_EXHAUSTED = 8, UNAVAILABLE = 14 };

typedef struct Connection {
    int fd;
    int is_waiting;
    int is_touched;
    nghttp2_session *session;
    const uint8_t *unsent;
    size_t unsent_length;
} Connection;

/* A place for one call in progress. */
typedef struct {
    Connection *connection;
    int busy;
    double due_at;
    int status;
    int has_retry_delay;
    const char *message;
    size_t message_left;
} Place;

static Connection *connections;
static Place *places;
static int *idle, place_count, idle_first, idle_count, poller, port_number;
static char authority[32];
static double end_at;
static nghttp2_session_callbacks *callbacks;

static void make_idle(Place *place) {
    place->busy = 0;
    idle[(idle_first + idle_count++) % place_count] = place - places;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_length,
                     const uint8_t *value, size_t value_length, uint8_t flags, void *user) {
    (void)flags; (void)user;
    Place *place = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (!place) return 0;
    if (name_length == 11 && !memcmp(name, "grpc-status", 11)) {
        place->status = 0;
        for (size_t i = 0; i < value_length; i++) place->status = 10 * place->status + value[i] - '0';
    } else if ((name_length == 23 && !memcmp(name, "grpc-status-details-bin", 23)) ||
               (name_length == 22 && !memcmp(name, "grpc-retry-pushback-ms", 22))) {
        place->has_retry_delay = 1;
    }
    return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t stream, uint32_t error, void *user) {
    (void)user;
    Place *place = nghttp2_session_get_stream_user_data(session, stream);
    if (!place) return 0;
    double at = now(), took = at - place->due_at;
    if (place->status == 0) { accepted_count++; record(accepted, took); }
    else if (place->status == RESOURCE_EXHAUSTED || place->status == UNAVAILABLE) {
        if (place->status == UNAVAILABLE) shed_count++; else limited_count++;
        record(shed, took);
        if (!place->has_retry_delay) without_retry_after++;
    } else if (place->status < 0 && error == NGHTTP2_REFUSED_STREAM) { shed_count++; record(shed, took); }
    else other_count++;
    if (at > end_at) answered_after++;
    make_idle(place);
    return 0;
}

static ssize_t read_message(nghttp2_session *session, int32_t stream, uint8_t *into, size_t room, uint32_t *flags,
                            nghttp2_data_source *source, void *user) {
    (void)session; (void)stream; (void)user;
    Place *place = source->ptr;
    size_t length = place->message_left < room ? place->message_left : room;
    memcpy(into, place->message, length);
    place->message += length;
    if (!(place->message_left -= length)) *flags |= NGHTTP2_DATA_FLAG_EOF;
    return length;
}

static void open_connection(Connection *connection) {
    nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 1 << 20},
                                         {NGHTTP2_SETTINGS_ENABLE_PUSH, 0}};
    connection->fd = connect_to(port_number);
    connection->unsent_length = 0;
    connection->is_waiting = 0;
    if (nghttp2_session_client_new(&connection->session, callbacks, connection)) die("nghttp2");
    nghttp2_submit_settings(connection->session, NGHTTP2_FLAG_NONE, settings, 2);
    nghttp2_session_set_local_window_size(connection->session, NGHTTP2_FLAG_NONE, 0, 1 << 24);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, connection->fd, &event)) die("epoll_ctl");
}

static void wait_writable(Connection *connection, int is_waiting) {
    if (connection->is_waiting == is_waiting) return;
    connection->is_waiting = is_waiting;
    struct epoll_event event = {.events = EPOLLIN | (is_waiting ? EPOLLOUT : 0), .data.ptr = connection};
    epoll_ctl(poller, EPOLL_CTL_MOD, connection->fd, &event);
}

/* Whether the connection is still usable. What the socket does not take now is sent when it is writable. */
static int flush(Connection *connection) {
    static uint8_t together[ROOM];
    connection->is_touched = 0;
    for (;;) {
        if (!connection->unsent_length) {
            /* nghttp2 returns one frame at a time: a write for each would cost more than all the rest. */
            size_t have = 0;
            const uint8_t *frame;
            ssize_t length = 0;
            while (have < ROOM / 2 && (length = nghttp2_session_mem_send(connection->session, &frame)) > 0) {
                if ((size_t)length > ROOM - have) { fprintf(stderr, "frame too large\n"); exit(1); }
                memcpy(together + have, frame, length);
                have += length;
            }
            if (length < 0) return 0;
            if (!have) break;
            ssize_t wrote = write(connection->fd, together, have);
            if (wrote < 0 && errno != EAGAIN) return 0;
            if (wrote < 0) wrote = 0;
            if ((size_t)wrote < have) {
                connection->unsent_length = have - wrote;
                connection->unsent = memcpy(malloc(have - wrote), together + wrote, have - wrote);
                wait_writable(connection, 1);
                return 1;
            }
        } else {
            ssize_t wrote = write(connection->fd, connection->unsent, connection->unsent_length);
            if (wrote < 0) return errno == EAGAIN;
            if ((size_t)wrote < connection->unsent_length) {
                memmove((uint8_t *)connection->unsent, connection->unsent + wrote, connection->unsent_length -= wrote);
                return 1;
            }
            free((void *)connection->unsent);
            connection->unsent_length = 0;
            wait_writable(connection, 0);
        }
    }
    return 1;
}

static void reopen(Connection *connection) {
    for (int i = 0; i < place_count; i++) {
        if (places[i].connection == connection && places[i].busy) {
            broken_count++;
            make_idle(&places[i]);
        }
    }
    if (connection->unsent_length) free((void *)connection->unsent);
    nghttp2_session_del(connection->session);
    close(connection->fd);
    open_connection(connection);
}

static nghttp2_nv pair(const char *name, const char *value, size_t length) {
    nghttp2_nv made = {(uint8_t *)name, (uint8_t *)value, strlen(name), length, NGHTTP2_NV_FLAG_NONE};
    return made;
}

static void call(Place *place, size_t number) {
    const char *data = requests[number].data, *path_end = memchr(data, '\n', requests[number].length);
    if (!path_end) { fprintf(stderr, "a request without a path\n"); exit(1); }
    nghttp2_nv headers[] = {
        pair(":method", "POST", 4), pair(":scheme", "http", 4), pair(":path", data, path_end - data),
        pair(":authority", authority, strlen(authority)), pair("te", "trailers", 8),
        pair("content-type", "application/grpc", 16),
    };
    place->busy = 1;
    place->status = -1;
    place->has_retry_delay = 0;
    place->message = path_end + 1;
    place->message_left = requests[number].length - (path_end + 1 - data);
    nghttp2_data_provider provider = {.source.ptr = place, .read_callback = read_message};
    nghttp2_session *session = place->connection->session;
    if (nghttp2_submit_request(session, NULL, headers, sizeof headers / sizeof *headers, &provider, place) < 0) {
        broken_count++;
        make_idle(place);
    }
    place->connection->is_touched = 1;
}

/* Put gRPC's prefix, no compression and the length, before each message. */
static void frame_messages(void) {
    for (size_t i = 0; i < request_count; i++) {
        char *data = requests[i].data, *path_end = memchr(data, '\n', requests[i].length);
        if (!path_end) { fprintf(stderr, "a request without a path\n"); exit(1); }
        size_t path = path_end + 1 - data, message = requests[i].length - path;
        char *framed = malloc(requests[i].length + 5);
        memcpy(framed, data, path);
        framed[path] = 0;
        for (int place = 0; place < 4; place++) framed[path + 1 + place] = (char)(message >> (24 - 8 * place));
        memcpy(framed + path + 5, data + path, message);
        requests[i].data = framed;
        requests[i].length += 5;
    }
}

int main(int count, char **given) {
    if (count != 6) {
        fprintf(stderr, "usage: open_load_grpc PORT RATE SECONDS CONNECTIONS STREAMS < requests\n");
        return 2;
    }
    int wanted = atoi(given[4]), streams = atoi(given[5]);
    double rate = atof(given[2]), seconds = atof(given[3]);
    port_number = atoi(given[1]);
    snprintf(authority, sizeof authority, "127.0.0.1:%d", port_number);
    poller = epoll_create1(0);
    raise_file_limit();
    read_requests();
    frame_messages();
    if (nghttp2_session_callbacks_new(&callbacks)) die("nghttp2");
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
    place_count = wanted * streams;
    connections = calloc(wanted, sizeof *connections);
    places = calloc(place_count, sizeof *places);
    idle = calloc(place_count, sizeof *idle);
    for (int i = 0; i < wanted; i++) {
        open_connection(&connections[i]);
        if (!flush(&connections[i])) die("connect");
    }
    /* Neighbouring places belong to different connections: a light load uses all of them. */
    for (int i = 0; i < place_count; i++) {
        places[i].connection = &connections[i % wanted];
        make_idle(&places[i]);
    }
    double began = now();
    long handled = 0;
    size_t next = 0;
    struct epoll_event events[EVENTS];
    end_at = began + seconds;
    for (;;) {
        double at = now();
        long due = (long)((at < end_at ? at - began : seconds) * rate);
        for (; handled < due && idle_count; handled++) {
            Place *place = &places[idle[idle_first]];
            idle_first = (idle_first + 1) % place_count;
            idle_count--;
            place->due_at = began + handled / rate;
            sent_count++;
            call(place, next++ % request_count);
        }
        /* Without a free place. */
        handled = due;
        for (int i = 0; i < wanted; i++) {
            if (connections[i].is_touched && !flush(&connections[i])) reopen(&connections[i]);
        }
        /* Half a second for answers that are under way. */
        if (at >= end_at + 0.5 || (at >= end_at && idle_count == place_count)) break;
        int ready = epoll_wait(poller, events, EVENTS, 1);
        for (int i = 0; i < ready; i++) {
            static uint8_t data[ROOM];
            Connection *connection = events[i].data.ptr;
            connection->is_touched = 1;
            ssize_t got = read(connection->fd, data, sizeof data);
            if (got < 0 && errno == EAGAIN) continue;
            if (got <= 0 || nghttp2_session_mem_recv(connection->session, data, got) < 0) reopen(connection);
        }
    }
    report(rate, seconds);
    return 0;
}
