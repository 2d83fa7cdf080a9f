// Package job is the protocol between an emulated machine and the program that starts it: plain data, no behaviour. It
// is a package of its own so that the machine's first process is not made of more than it needs.
package job

// Job is what a machine does. It is in the file File of the machine's first file system, as JSON.
type Job struct {
	// Modules are files of kernel modules on the first file system, in the order in which they are loaded: what is
	// needed to mount the host's files.
	Modules []string
	// ModuleTree is the directory of all modules of the machine's kernel, on the host.
	ModuleTree string
	// Commands are run one after the other, also after one that failed.
	Commands []Command
}

// Command is a program of the host to run in the machine.
type Command struct {
	// Name is what results are known by, and what is written before its output.
	Name string
	// Args are the program's path and arguments, Dir its working directory, Env its whole environment.
	Args []string
	Dir  string
	Env  []string
}

// Result is how a command ended. A machine writes one a line, as JSON, to ResultPort.
type Result struct {
	Name string
	// Exit is the exit status, -1 for a command that was ended by a signal or could not be started; Problem says which.
	Exit    int
	Problem string  `json:",omitempty"`
	Seconds float64 `json:",omitempty"`
}

// File is where a machine finds its job.
const File = "/job.json"

// HostTag is the name under which a machine mounts the host's files (9p).
const HostTag = "host"

// Ports of a machine, on its one virtio-serial controller: the commands' output, and Results.
const (
	OutputPort = 1
	ResultPort = 2
)
