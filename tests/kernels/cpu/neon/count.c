// A plugin of qemu-user (any since 4.2) that prints how many instructions a program ran.
//
//   gcc -shared -fPIC count.c -o count.so && qemu-aarch64 -plugin ./count.so PROGRAM ...
//
// What it needs of qemu-plugin.h, which distributions leave out, is declared here.
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

struct qemu_plugin_tb;
enum { ADD_U64 = 0 };

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb* block);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*call)(uint64_t, struct qemu_plugin_tb*));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb* block, int op, void* to, uint64_t what);
void qemu_plugin_register_atexit_cb(uint64_t id, void (*call)(uint64_t, void*), void* given);

int qemu_plugin_version = 1;
static uint64_t num_instructions;

static void translated(uint64_t id, struct qemu_plugin_tb* block) {
  (void)id;
  qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, &num_instructions, qemu_plugin_tb_n_insns(block));
}

static void over(uint64_t id, void* given) {
  (void)id, (void)given;
  fprintf(stderr, "%" PRIu64 " instructions\n", num_instructions);
}

int qemu_plugin_install(uint64_t id, const void* info, int argc, char** argv) {
  (void)info, (void)argc, (void)argv;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, over, NULL);
  return 0;
}
