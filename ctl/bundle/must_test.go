package bundle

import "github.com/kube-semaphore/semaphore/test/testkit"

var must = testkit.Must
