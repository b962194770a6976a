/* Small, and all that the reader looks at: versions of two libraries, a
   Python module, a question about the CPU, a hidden indirect function. */
int puts(const char *);
double pow(double, double);
extern unsigned __cpu_model;

static int plain(void) { return 1; }
static int (*choose(void))(void) { return plain; }
static int chosen(void) __attribute__((ifunc("choose")));

int PyInit_tiny(void) { return puts("") + (int)pow(2, __cpu_model) + chosen(); }
