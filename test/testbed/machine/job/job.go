// Package job is the data exchanged between an emulated machine and the program that starts it. It is separate from
// package machine to keep the machine's first process small.
package job

// Job is the work of a machine. The machine's first file system has it in File, as JSON.
type Job struct {
	// Modules are kernel module files on the first file system, in load order. They are the modules for mounting the
	// host's files.
	Modules []string
	// ModuleTree is the host's directory of all modules of the machine's kernel.
	ModuleTree string
	// Commands run one after the other. A failure does not stop the following ones.
	Commands []Command
}

// Command is a program of the host that runs in the machine.
type Command struct {
	// Name identifies the result and is printed before the output.
	Name string
	// Args are the program's path and arguments, Dir is its working directory, and Env its complete environment.
	Args []string
	Dir  string
	Env  []string
}

// Result is the outcome of a command. The machine writes one per line, as JSON, to ResultPort.
type Result struct {
	Name string
	// Exit is the exit status, or -1 if a signal ended the command or it could not start; Problem then says which.
	Exit    int
	Problem string  `json:",omitempty"`
	Seconds float64 `json:",omitempty"`
}

// File is the path of the Job in the machine.
const File = "/job.json"

// HostTag is the 9p mount tag of the host's files.
const HostTag = "host"

// Ports of the machine's virtio-serial controller, for the commands' output and for Results.
const (
	OutputPort = 1
	ResultPort = 2
)
