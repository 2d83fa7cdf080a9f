package finding

import "errors"

// unready is why a part is not ready, with the findings that are the cause.
type unready struct {
	error
	causes []Finding
}

func (u *unready) Unwrap() error { return u.error }

// Because adds to an error why a part is not ready those of its findings that are the cause.
func Because(err error, causes ...Finding) error {
	if err == nil || len(causes) == 0 {
		return err
	}
	return &unready{err, causes}
}

// Blocks returns the findings that make a part not ready: NotReady, with the error's text, and its causes. They are
// merged, and none without an error.
func Blocks(err error) []Finding {
	if err == nil {
		return nil
	}
	all := []Finding{New(NotReady, "", 1, err.Error())}
	if u := (*unready)(nil); errors.As(err, &u) {
		all = append(all, u.causes...)
	}
	return Merge(all)
}
