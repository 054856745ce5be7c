// Sends a piece of KV to a socket from its blocks, and computes the checksums of its units on the way.
//
// Units are checksummed in groups right before they are sent, so that the kernel copies them from the core's caches,
// and memory is read once. The checksums follow the piece, and after them a checksum of these checksums, which shows
// whether they were damaged on the way. One call sends a whole piece without the GIL, and without any Python code per
// block.
#include <sys/socket.h>
#include <sys/uio.h>

#include "checksum.h"
#include "piece_stream.h"

// The progress of a piece. Zeroed at the beginning, and kept until the piece is sent.
struct Dispatch {
  // Number of units with a checksum.
  int64_t num_units;
  // Bytes of the header, the units and their checksums that were sent.
  int64_t num_bytes;
};

namespace {

constexpr int MAX_PARTS = 1024;  // IOV_MAX of Linux
constexpr int64_t WORD_BYTES = sizeof(uint64_t);

struct Piece {
  const Blocks* blocks;
  int64_t num_units, unit_bytes;  // of each block

  int64_t num_all() const { return blocks->num_rows * blocks->num_starts * num_units; }
  // The checksums of all units, and the one of these.
  int64_t trailer_bytes() const { return WORD_BYTES * (num_all() + 1); }
  uint8_t* unit(int64_t number) const {
    const int64_t block = number / num_units;
    const Cursor at{blocks, block / blocks->num_starts, block % blocks->num_starts};
    return at.where() + number % num_units * unit_bytes;
  }
};

// The parts that one system call sends; adjacent memory is merged into one part.
struct Parts {
  iovec parts[MAX_PARTS];
  int count = 0;
  int64_t num_bytes = 0;

  // Returns false if there is no room for it.
  bool add(const void* memory, int64_t size) {
    if (!size) return true;
    iovec* last = count ? &parts[count - 1] : nullptr;
    if (last && (uint8_t*)last->iov_base + last->iov_len == memory) {
      last->iov_len += size_t(size);
    } else {
      if (count == MAX_PARTS) return false;
      parts[count++] = {const_cast<void*>(memory), size_t(size)};
    }
    num_bytes += size;
    return true;
  }
};

// Collects header, units and checksums from byte `from` on, as far as units have checksums.
void collect(Parts& parts, const Piece& piece, const uint8_t* header, int64_t num_summed,
             const uint64_t* checksums, int64_t from) {
  if (from < HEADER_BYTES) {
    parts.add(header + from, HEADER_BYTES - from);
    from = HEADER_BYTES;
  }
  const int64_t first = (from - HEADER_BYTES) / piece.unit_bytes;
  int64_t begun = (from - HEADER_BYTES) % piece.unit_bytes;
  for (int64_t i = first; i < num_summed; i++, begun = 0)
    if (!parts.add(piece.unit(i) + begun, piece.unit_bytes - begun)) return;
  const int64_t num_all = piece.num_all();
  if (num_summed < num_all) return;
  const int64_t behind = from - HEADER_BYTES - num_all * piece.unit_bytes;
  const int64_t begin = behind > 0 ? behind : 0;
  parts.add((const uint8_t*)checksums + begin, piece.trailer_bytes() - begin);
}

}  // namespace

// Sends a header, the units of all `sources`, the checksum of each, and the checksum of these checksums. `at_once`
// bytes, or one unit, are checksummed before they are sent. Before each of these steps, and whenever the socket's own
// time limit is over, `is_given_up` is read, which another thread may set: then no more units are read, and GIVEN_UP is
// returned. NOT_YET: `limit_s` is over; call it again with the same `checksums`, which have room for one more than there
// are units. A negative number is an errno.
extern "C" int64_t baton_send(int64_t socket, const Blocks* sources, int64_t num_units,
                              int64_t unit_bytes, const uint8_t* header, int64_t at_once,
                              double limit_s, const int32_t* is_given_up, Dispatch* dispatch,
                              uint64_t* checksums) {
  const Piece piece{sources, num_units, unit_bytes};
  const int64_t num_all = piece.num_all();
  const int64_t most = at_once > unit_bytes ? at_once / unit_bytes : 1;
  const int64_t total = HEADER_BYTES + num_all * unit_bytes + piece.trailer_bytes();
  const double until = seconds() + limit_s;
  while (dispatch->num_bytes < total) {
    if (__atomic_load_n(is_given_up, __ATOMIC_RELAXED)) return GIVEN_UP;
    const int64_t summed = dispatch->num_units;
    const bool is_next_due = !summed || dispatch->num_bytes == HEADER_BYTES + summed * unit_bytes;
    if (is_next_due && summed < num_all) {
      const int64_t stop = summed + most < num_all ? summed + most : num_all;
      for (int64_t i = summed; i < stop; i++) {
        const uint8_t* next = piece.unit(i + 1 < num_all ? i + 1 : i);
        checksums[i] = checksum(piece.unit(i), nullptr, unit_bytes, next);
      }
      if (stop == num_all) {
        uint8_t* all = (uint8_t*)checksums;
        checksums[num_all] = checksum(all, nullptr, WORD_BYTES * num_all, all);
      }
      dispatch->num_units = stop;
    }
    Parts parts;
    collect(parts, piece, header, dispatch->num_units, checksums, dispatch->num_bytes);
    msghdr message{};
    message.msg_iov = parts.parts;
    message.msg_iovlen = size_t(parts.count);
    const ssize_t sent = sendmsg(int(socket), &message, MSG_NOSIGNAL);
    if (sent < 0 && !is_passing(errno)) return -errno;
    if (sent > 0) dispatch->num_bytes += sent;
    if (dispatch->num_bytes < total && seconds() > until) return NOT_YET;
  }
  return ALL;
}
