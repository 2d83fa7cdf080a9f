/* The first process of a pod, as Kubernetes has it (build/pause in its repository): it holds the pod's namespaces until it is
 * terminated, and where containers share a PID namespace it reaps what their processes leave behind. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) { _exit(0); }

static void reap(int signal)
{
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

int main(void)
{
	struct sigaction ends = { .sa_handler = end }, reaps = { .sa_handler = reap, .sa_flags = SA_NOCLDSTOP };

	if (sigaction(SIGINT, &ends, NULL) < 0 || sigaction(SIGTERM, &ends, NULL) < 0 || sigaction(SIGCHLD, &reaps, NULL) < 0)
		return 1;
	for (;;)
		pause();
}
