// What sending a piece of KV to a socket (send.cpp) and receiving it (receive.cpp) have in common.
#pragma once

#include <cerrno>
#include <cstdint>

#include <time.h>

// What a call returns; a negative number is an errno. As in kernels/paging/piece_stream.py.
enum {
  ALL = 0,
  NOT_YET = 1,   // the socket's own time limit is over, or the caller's: to be called again
  ENDED = 2,     // by the other end
  ANOTHER = 3,   // the header is another than expected
  GIVEN_UP = 4,  // by another thread of the caller's
};

constexpr int64_t HEADER_BYTES = 16;

// Whether a call of the system failed only because its time was over, or by a signal.
inline bool is_passing(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

inline double seconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}
