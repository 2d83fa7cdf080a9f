package status

import "github.com/kube-semaphore/semaphore/test/testkit"

// must ends the test on an error.
var must = testkit.Must
