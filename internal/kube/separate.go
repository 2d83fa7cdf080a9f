package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	kjson "sigs.k8s.io/json"
)

// Object is a pointer to the Go type of an object.
type Object interface {
	runtime.Object
	metav1.Object
}

func Empty[T Object]() T { return reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T) }

// Unreadable says that an object has a field whose value its Go type cannot hold. The schema of a custom resource
// permits more than Go reads: the apiserver stores the time "2026-11-26T19:00:00Ztx".
type Unreadable struct {
	Kind, Namespace, Name string
	// Field is the path of the first such field.
	Field string
	Err   error
	// Whole is set if the object cannot be used. Otherwise only parts of its status are missing.
	Whole bool
}

func (u *Unreadable) Error() string {
	name := u.Name
	if u.Namespace != "" {
		name = u.Namespace + "/" + name
	}
	effect := "the rest of the object is used"
	if u.Whole {
		effect = "what was known of the object before stays in use"
	}
	return fmt.Sprintf("%s %.128s: %.128s cannot be read: %.256v; %s; correct the field", u.Kind, name, u.Field, u.Err,
		effect)
}

// ReadObject decodes an object from JSON. Elements of the status that cannot be read are left out, and bad says so; no
// decision may need them. If anything else cannot be read, bad is Whole, and the object has only its metadata.
func ReadObject[T Object](kind string, data []byte) (object T, bad *Unreadable) {
	object = Empty[T]()
	first := decode(data, object)
	if first == nil {
		return object, nil
	}
	var content map[string]any
	if err := decode(data, &content); err != nil {
		return Empty[T](), &Unreadable{Kind: kind, Field: "the object", Err: err, Whole: true}
	}
	object = Empty[T]()
	read := reader{}
	bad = &Unreadable{Kind: kind}
	if status, ok := content["status"]; ok {
		if t, has := fieldNamed(reflect.TypeOf(object).Elem(), "status"); has {
			content["status"], ok = read.clean(t, status, "status")
			if !ok {
				delete(content, "status")
			}
		}
	}
	if err := redecode(content, object); err != nil {
		bad.Whole = true
		read = reader{}
		delete(content, "status")
		read.clean(reflect.TypeOf(object).Elem(), maps.Clone(content), "")
		object = Empty[T]()
		_ = redecode(map[string]any{"metadata": content["metadata"]}, object)
		read.note("the object", err) // if no single field is the reason
	}
	bad.Namespace, bad.Name, bad.Field, bad.Err = object.GetNamespace(), object.GetName(), read.field, read.err
	return object, bad
}

func decode(data []byte, into any) error { return kjson.UnmarshalCaseSensitivePreserveInts(data, into) }

func redecode(content, into any) error {
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return decode(data, into)
}

// reader has the first field that cannot be read.
type reader struct {
	field string
	err   error
}

func (r *reader) note(field string, err error) {
	if r.err == nil {
		r.field, r.err = field, err
	}
}

// clean returns a value without the parts that the type cannot hold: fields of a struct, keys of a map, and whole
// elements of a list. ok is false if nothing is left.
func (r *reader) clean(t reflect.Type, value any, path string) (cleaned any, ok bool) {
	failed := redecode(value, reflect.New(t).Interface())
	if failed == nil {
		return value, true
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	_, own := reflect.New(t).Interface().(json.Unmarshaler)
	switch v := value.(type) {
	case map[string]any:
		if own || t.Kind() != reflect.Struct && t.Kind() != reflect.Map {
			break
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			of, has := fieldNamed(t, key)
			if !has {
				continue
			}
			if v[key], ok = r.clean(of, v[key], strings.TrimPrefix(path+"."+key, ".")); !ok {
				delete(v, key)
			}
		}
		return v, true
	case []any:
		if own || t.Kind() != reflect.Slice {
			break
		}
		kept := []any{}
		for i, element := range v {
			at := path + "[" + strconv.Itoa(i) + "]"
			if redecode(element, reflect.New(t.Elem()).Interface()) == nil {
				kept = append(kept, element)
				continue
			}
			r.clean(t.Elem(), element, at)
		}
		return kept, true
	}
	r.note(path, failed)
	return nil, false
}

// fieldNamed returns the type of the field of a struct that JSON calls name, or of a map's values.
func fieldNamed(t reflect.Type, name string) (of reflect.Type, ok bool) {
	if t.Kind() == reflect.Map {
		return t.Elem(), true
	}
	for i := range t.NumField() {
		field := t.Field(i)
		tag, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case tag == name:
			return field.Type, true
		case tag == "" && field.Anonymous && field.Type.Kind() == reflect.Struct && strings.Contains(options, "inline"):
			if of, ok := fieldNamed(field.Type, name); ok {
				return of, true
			}
		}
	}
	return nil, false
}

// Unread has the objects of a list and watch that cannot be read, wholly or in part. It is safe for concurrent use.
type Unread struct {
	// Earlier gets the metadata of an object that cannot be read, and returns the last known object of its name. Without
	// an earlier state the object counts as absent.
	Earlier func(metadata Object) (Object, bool)
	// Changed, if not nil, is called when an object begins or ceases to be unreadable, or has another reason.
	Changed func(*Unreadable)

	mu  sync.Mutex
	bad map[string]*Unreadable
}

// shownUnread is how many objects Lines names.
const shownUnread = 10

// Lines returns a line for each object that cannot be read, the first ones by name.
func (u *Unread) Lines() (lines []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(u.bad), func(a, b string) int {
		wholeFirst := func(key string) int {
			if u.bad[key].Whole {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(wholeFirst(a), wholeFirst(b)), cmp.Compare(a, b))
	})
	for i, key := range keys {
		if i == shownUnread {
			return append(lines, fmt.Sprintf("and %d other objects of kind %s", len(keys)-i, u.bad[key].Kind))
		}
		lines = append(lines, u.bad[key].Error())
	}
	return lines
}

// Put records that an object with a key was read; bad is nil if all of it could be.
func (u *Unread) Put(key string, bad *Unreadable) {
	if u == nil {
		return
	}
	u.mu.Lock()
	before := u.bad[key]
	switch {
	case bad == nil:
		delete(u.bad, key)
	case u.bad == nil:
		u.bad = map[string]*Unreadable{key: bad}
	default:
		u.bad[key] = bad
	}
	u.mu.Unlock()
	same := before == bad || before != nil && bad != nil && before.Error() == bad.Error()
	if !same && bad != nil && u.Changed != nil {
		u.Changed(bad)
	}
}

// Listed removes what a complete list lacks.
func (u *Unread) Listed(there map[string]bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.bad, func(key string, _ *Unreadable) bool { return !there[key] })
}

// earlier returns the last readable form of an unreadable object, with its resourceVersion of now.
func (u *Unread) earlier(metadata Object) (runtime.Object, bool) {
	if u == nil || u.Earlier == nil {
		return nil, false
	}
	before, ok := u.Earlier(metadata)
	if !ok || before.GetUID() != metadata.GetUID() {
		return nil, false
	}
	out := before.DeepCopyObject()
	out.(metav1.Object).SetResourceVersion(metadata.GetResourceVersion())
	return out, true
}

// Separate lists and watches objects of a type that others write. It decodes each object separately, so that one that
// cannot be read costs no other one.
type Separate[T Object] struct {
	Kind string
	// List is an empty list of them; none is needed for ReadOne.
	List runtime.Object
	// Unread gets the objects that cannot be read. If it is nil, such an object is the error of a list.
	Unread *Unread
}

// Answer returns the body of an answer, undecoded. Its error has the message of the apiserver, which that of result.Raw
// lacks.
func Answer(result rest.Result) ([]byte, error) {
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

// Read decodes the answer to a request for a list, made with options, into the list of the type. It fails if the
// request failed, the answer is no list or, without Unread, an object cannot be read.
func (s Separate[T]) Read(result rest.Result, options metav1.ListOptions) (runtime.Object, error) {
	data, err := Answer(result)
	if err != nil {
		return nil, err
	}
	list := s.List.DeepCopyObject()
	if decode(data, list) == nil {
		return list, s.allRead(list, options)
	}
	var parts struct {
		metav1.TypeMeta `json:",inline"`
		metav1.ListMeta `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}
	if err := decode(data, &parts); err != nil {
		return nil, fmt.Errorf("list of %s: %w", s.Kind, err)
	}
	list = s.List.DeepCopyObject()
	var objects []runtime.Object
	there := map[string]bool{}
	for _, item := range parts.Items {
		object, bad := ReadObject[T](s.Kind, item)
		if bad != nil && s.Unread == nil && bad.Whole {
			return nil, bad
		}
		there[keyOf(object)] = true
		s.Unread.Put(keyOf(object), bad)
		if bad == nil || !bad.Whole {
			objects = append(objects, object)
		} else if before, ok := s.Unread.earlier(object); ok {
			objects = append(objects, before)
		}
	}
	if s.Unread != nil && options.Continue == "" && parts.Continue == "" {
		s.Unread.Listed(there)
	}
	if err := meta.SetList(list, objects); err != nil {
		return nil, fmt.Errorf("list of %s: %w", s.Kind, err)
	}
	into, err := meta.ListAccessor(list)
	if err != nil {
		return nil, fmt.Errorf("list of %s: %w", s.Kind, err)
	}
	into.SetResourceVersion(parts.ResourceVersion)
	into.SetContinue(parts.Continue)
	into.SetRemainingItemCount(parts.RemainingItemCount)
	return list, nil
}

// allRead records that a list has only objects that could be read.
func (s Separate[T]) allRead(list runtime.Object, options metav1.ListOptions) error {
	of, err := meta.ListAccessor(list)
	switch {
	case err != nil:
		return fmt.Errorf("list of %s: %w", s.Kind, err)
	case s.Unread == nil:
		return nil
	case options.Continue == "" && of.GetContinue() == "":
		s.Unread.Listed(nil)
		return nil
	}
	return meta.EachListItem(list, func(o runtime.Object) error {
		s.Unread.Put(keyOf(o.(metav1.Object)), nil)
		return nil
	})
}

// ReadOne decodes the answer to a request for one object. It fails if the request failed, or if anything but its status
// cannot be read.
func (s Separate[T]) ReadOne(result rest.Result) (object T, err error) {
	data, err := Answer(result)
	if err != nil {
		return Empty[T](), err
	}
	object, bad := ReadObject[T](s.Kind, data)
	if bad != nil && bad.Whole {
		return object, bad
	}
	return object, nil
}

// Watch decodes the events of a watch, made with options, of a client with RawObjects. It fails if the request does.
func (s Separate[T]) Watch(ctx context.Context, request *rest.Request,
	options metav1.ListOptions) (watch.Interface, error) {
	events, err := request.Watch(ctx)
	if err != nil || reflect.TypeOf(events) == emptyWatch { // RetryWhileAway looks for that type
		return events, err
	}
	w := &decoded{source: events, result: make(chan watch.Event), stopped: make(chan struct{})}
	var initial map[string]bool
	if options.SendInitialEvents != nil && *options.SendInitialEvents {
		initial = map[string]bool{}
	}
	go w.pass(func(in watch.Event) (watch.Event, bool) { return s.event(in, initial) })
	return w, nil
}

// decoded passes the events of a source on, decoded.
type decoded struct {
	source  watch.Interface
	result  chan watch.Event
	stop    sync.Once
	stopped chan struct{}
}

func (w *decoded) pass(event func(watch.Event) (watch.Event, bool)) {
	defer close(w.result)
	defer w.source.Stop()
	for in := range w.source.ResultChan() {
		out, keep := event(in)
		if !keep {
			continue
		}
		select {
		case w.result <- out:
		case <-w.stopped:
			return
		}
	}
}

func (w *decoded) Stop() {
	w.stop.Do(func() { close(w.stopped) })
	w.source.Stop()
}

func (w *decoded) ResultChan() <-chan watch.Event { return w.result }

// event decodes the object of an event. An event of an object that cannot be read has the earlier state; without one
// it is left out. initial, if not nil, has the objects that the watch began with.
func (s Separate[T]) event(in watch.Event, initial map[string]bool) (out watch.Event, keep bool) {
	raw, ok := in.Object.(*runtime.Unknown)
	if !ok {
		return in, true
	}
	object, bad := ReadObject[T](s.Kind, raw.Raw)
	out = watch.Event{Type: in.Type, Object: object}
	if in.Type == watch.Bookmark {
		if initial != nil && s.Unread != nil && object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			s.Unread.Listed(initial)
		}
		return out, true
	}
	if initial != nil {
		initial[keyOf(object)] = true
	}
	if in.Type == watch.Deleted {
		s.Unread.Put(keyOf(object), nil)
		return out, true
	}
	s.Unread.Put(keyOf(object), bad)
	if bad == nil || !bad.Whole {
		return out, true
	}
	out.Object, keep = s.Unread.earlier(object)
	return out, keep
}

func keyOf(object metav1.Object) string {
	return cache.NewObjectName(object.GetNamespace(), object.GetName()).String()
}

// RawObjects is a serializer for Separate: objects of all types except errors stay encoded.
func RawObjects(of runtime.NegotiatedSerializer) runtime.NegotiatedSerializer { return rawObjects{of} }

type rawObjects struct{ runtime.NegotiatedSerializer }

func (r rawObjects) DecoderToVersion(d runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return rawDecoder{r.NegotiatedSerializer.DecoderToVersion(d, gv)}
}

type rawDecoder struct{ runtime.Decoder }

func (d rawDecoder) Decode(data []byte, defaults *schema.GroupVersionKind,
	into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	var of metav1.TypeMeta
	if err := decode(data, &of); err != nil || into != nil || of.Kind == "Status" && of.APIVersion == "v1" {
		return d.Decoder.Decode(data, defaults, into)
	}
	gvk := of.GroupVersionKind()
	return &runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: of.APIVersion, Kind: of.Kind},
		Raw: slices.Clone(data)}, &gvk, nil
}
