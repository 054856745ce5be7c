// Receives a piece of KV from a socket into its blocks, and computes the checksums of its units while writing them.
//
// The kernel copies into a buffer that stays in the caches; one pass moves the data from there to its place with stores
// that bypass the caches, as `baton_checksums` does. So a block's memory is written once and not read at all. One call
// receives a whole piece without the GIL, and without any Python code per block.
#include <cstring>

#include <sys/socket.h>

#include "checksum.h"
#include "piece_stream.h"

// The progress of a piece. Zeroed at the beginning, and kept until the piece is complete.
struct Receipt {
  uint8_t header[HEADER_BYTES];
  int64_t num_header_bytes;
  int64_t num_units;
  // Bytes in the buffer, which belong to the next units.
  int64_t num_bytes;
  int64_t num_trailer_bytes;
};

namespace {

// Receives until `size` bytes are there; `done` counts them. Returns a negative errno on error.
int fill(int socket, uint8_t* memory, int64_t size, int64_t& done) {
  if (done == size) return ALL;
  const ssize_t got = recv(socket, memory + done, size_t(size - done), MSG_WAITALL);
  if (!got) return ENDED;
  if (got < 0) return is_passing(errno) ? NOT_YET : -errno;
  done += got;
  return done == size ? ALL : NOT_YET;
}

}  // namespace

// Receives a header, which must equal `expected` (otherwise ANOTHER), the units of all `targets`, with a checksum of
// each, and a trailer. NOT_YET: the socket's time limit or `limit_s` is over; call it again with the same buffer of
// `buffer_bytes`, which holds at least one unit. ENDED: the peer closed the connection.
extern "C" int64_t baton_receive(int64_t socket, const Blocks* targets, int64_t num_units,
                                 int64_t unit_bytes, const uint8_t* expected, uint8_t* buffer,
                                 int64_t buffer_bytes, double limit_s, Receipt* receipt,
                                 uint64_t* checksums, uint8_t* trailer, int64_t trailer_bytes) {
  if (int why = fill(int(socket), receipt->header, HEADER_BYTES, receipt->num_header_bytes))
    return why;
  if (memcmp(receipt->header, expected, size_t(HEADER_BYTES))) return ANOTHER;

  const int64_t num_blocks = targets->num_rows * targets->num_starts;
  const int64_t num_all = num_blocks * num_units, most = buffer_bytes / unit_bytes;
  const double until = seconds() + limit_s;
  while (receipt->num_units < num_all) {
    const int64_t left = num_all - receipt->num_units, count = left < most ? left : most;
    if (int why = fill(int(socket), buffer, count * unit_bytes, receipt->num_bytes))
      return copies_end(), why;
    for (int64_t i = 0; i < count; i++) {
      const int64_t number = receipt->num_units + i, block = number / num_units;
      const Cursor at{targets, block / targets->num_starts, block % targets->num_starts};
      const uint8_t* source = buffer + i * unit_bytes;
      checksums[number] = checksum(at.where() + number % num_units * unit_bytes, source,
                                   unit_bytes, source);
    }
    receipt->num_units += count;
    receipt->num_bytes = 0;
    if (receipt->num_units < num_all && seconds() > until) return copies_end(), NOT_YET;
  }
  copies_end();
  return fill(int(socket), trailer, trailer_bytes, receipt->num_trailer_bytes);
}
