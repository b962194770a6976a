package publish_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// uploads is a package index that takes twine's uploads, and lists them as PEP 691 says.
type uploads struct {
	user, password string

	mutex sync.Mutex
	files map[string][]byte
	forms map[string]url.Values
	posts int
}

func newUploads() *uploads {
	return &uploads{user: "ci", password: "index-password", files: map[string][]byte{}, forms: map[string]url.Values{}}
}

func (s *uploads) all() map[string][]byte {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return maps.Clone(s.files)
}

func (s *uploads) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if user, password, _ := r.BasicAuth(); user != s.user || password != s.password {
		http.Error(w, "who is "+r.Header.Get("Authorization")+"?", http.StatusUnauthorized) // a careless server
		return
	}
	switch {
	case r.Method == http.MethodPost && r.URL.Path == "/legacy/":
		s.upload(w, r)
	case strings.HasPrefix(r.URL.Path, "/simple/"):
		s.list(w)
	case strings.HasPrefix(r.URL.Path, "/files/"):
		s.mutex.Lock()
		defer s.mutex.Unlock()
		_, _ = w.Write(s.files[strings.TrimPrefix(r.URL.Path, "/files/")])
	default:
		http.NotFound(w, r)
	}
}

func (s *uploads) upload(w http.ResponseWriter, r *http.Request) {
	name, data, form, err := readForm(r)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	switch _, exists := s.files[name]; {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
	case form.Get(":action") != "file_upload" || form.Get("protocol_version") != "1" || form.Get("filetype") != "bdist_wheel" ||
		form.Get("metadata_version") == "" || form.Get("name") == "" || form.Get("version") == "" || form.Get("pyversion") == "":
		http.Error(w, "a field is missing", http.StatusBadRequest)
	case form.Get("sha256_digest") != hexOf(data):
		http.Error(w, "another sha256", http.StatusBadRequest)
	case exists:
		http.Error(w, "File already exists", http.StatusBadRequest)
	default:
		s.files[name], s.forms[name] = data, form
		s.posts++
	}
}

// readForm reads the whole form of an upload.
func readForm(r *http.Request) (name string, data []byte, form url.Values, err error) {
	in, err := r.MultipartReader()
	if err != nil {
		return "", nil, nil, err
	}
	form = url.Values{}
	for {
		part, err := in.NextPart()
		if errors.Is(err, io.EOF) {
			return name, data, form, nil
		}
		if err != nil {
			return "", nil, nil, err
		}
		text, err := io.ReadAll(part)
		if err != nil {
			return "", nil, nil, err
		}
		if part.FormName() == "content" {
			name, data = part.FileName(), text
			continue
		}
		form.Add(part.FormName(), string(text))
	}
}

func (s *uploads) list(w http.ResponseWriter) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if len(s.files) == 0 {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	files := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		files = append(files, map[string]any{
			"filename": name, "url": "/files/" + strings.ReplaceAll(name, "+", "%2B"), "hashes": map[string]string{"sha256": hexOf(s.files[name])},
		})
	}
	w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
	_ = json.NewEncoder(w).Encode(map[string]any{"meta": map[string]string{"api-version": "1.0"}, "name": "deepspeed", "files": files})
}

// releases answers as the documentation of GitHub's API says: an upload that was cut off leaves an
// asset in the state "starter".
type releases struct {
	token    string
	noDigest bool

	mutex  sync.Mutex
	next   int64
	assets []*releaseAsset
	posts  int
}

type releaseAsset struct {
	ID     int64   `json:"id"`
	Name   string  `json:"name"`
	State  string  `json:"state"`
	Size   int     `json:"size"`
	Digest *string `json:"digest"`
	data   []byte
}

func (s *releases) all() map[string][]byte {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	all := map[string][]byte{}
	for _, a := range s.assets {
		if a.State == "uploaded" {
			all[a.Name] = a.data
		}
	}
	return all
}

func (s *releases) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const repo = "/repos/example/wheels/releases"
	path := r.URL.Path
	answer := func(code int, v any) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(v)
	}
	switch {
	case r.Header.Get("Authorization") != "Bearer "+s.token:
		answer(http.StatusUnauthorized, map[string]string{"message": "Bad credentials"})
	case path == repo+"/tags/v1" && r.Method == http.MethodGet:
		answer(http.StatusOK, map[string]any{"id": 7, "upload_url": "http://" + r.Host + "/upload" + repo + "/7/assets{?name,label}"})
	case path == repo+"/7/assets" && r.Method == http.MethodGet:
		answer(http.StatusOK, s.page(r.URL.Query()))
	case path == "/upload"+repo+"/7/assets" && r.Method == http.MethodPost:
		code, v := s.upload(r)
		answer(code, v)
	case strings.HasPrefix(path, repo+"/assets/"):
		id, _ := strconv.ParseInt(strings.TrimPrefix(path, repo+"/assets/"), 10, 64)
		s.one(w, r, id)
	default:
		answer(http.StatusNotFound, map[string]string{"message": "Not Found"})
	}
}

func (s *releases) page(query url.Values) []*releaseAsset {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	size, _ := strconv.Atoi(query.Get("per_page"))
	number, _ := strconv.Atoi(query.Get("page"))
	from := min(size*(number-1), len(s.assets))
	list := []*releaseAsset{}
	for _, a := range s.assets[from:min(from+size, len(s.assets))] {
		clone := *a
		list = append(list, &clone)
	}
	return list
}

func (s *releases) upload(r *http.Request) (int, any) {
	name := r.URL.Query().Get("name")
	s.mutex.Lock()
	for _, a := range s.assets {
		if a.Name == name {
			s.mutex.Unlock()
			return http.StatusUnprocessableEntity, map[string]any{"message": "Validation Failed", "errors": []map[string]string{{"resource": "ReleaseAsset", "code": "already_exists", "field": "name"}}}
		}
	}
	s.next++
	a := &releaseAsset{ID: s.next, Name: name, State: "starter"}
	s.assets = append(s.assets, a)
	s.mutex.Unlock()
	data, err := io.ReadAll(r.Body)
	if err != nil || int64(len(data)) != r.ContentLength {
		return http.StatusBadGateway, map[string]string{"message": "upstream failure"}
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	a.data, a.Size, a.State = data, len(data), "uploaded"
	s.posts++
	if sum := "sha256:" + hexOf(data); !s.noDigest {
		a.Digest = &sum
	}
	return http.StatusCreated, a
}

// one answers a request for one asset.
func (s *releases) one(w http.ResponseWriter, r *http.Request, id int64) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	i := slices.IndexFunc(s.assets, func(a *releaseAsset) bool { return a.ID == id })
	switch {
	case i < 0:
		http.NotFound(w, r)
	case r.Method == http.MethodDelete:
		s.assets = slices.Delete(s.assets, i, i+1)
		w.WriteHeader(http.StatusNoContent)
	case r.Header.Get("Accept") == "application/octet-stream":
		_, _ = w.Write(s.assets[i].data)
	}
}

// lab answers as the documentation of GitLab's API says.
type lab struct {
	token string

	mutex sync.Mutex
	busy  bool // a file of the package is on its way
	files []labFile
	links []map[string]string
	puts  int
}

type labFile struct {
	Name string `json:"file_name"`
	Sum  string `json:"file_sha256"`
	data []byte
}

// all returns the files that the release links.
func (s *lab) all() map[string][]byte {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	all := map[string][]byte{}
	for _, link := range s.links {
		for _, f := range s.files {
			if f.Name == link["name"] {
				all[f.Name] = f.data
			}
		}
	}
	return all
}

func (s *lab) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const project = "/projects/team%2Fwheels"
	path := r.URL.EscapedPath()
	answer := func(code int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(v)
	}
	if r.Header.Get("Private-Token") != s.token {
		answer(http.StatusUnauthorized, map[string]string{"message": "401 Unauthorized"})
		return
	}
	if file, ok := strings.CutPrefix(path, project+"/packages/generic/deepspeed/v1/"); ok && r.Method == http.MethodPut {
		name, _ := url.PathUnescape(file)
		answer(s.put(r, name))
		return
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	first := r.URL.Query().Get("page") == "1"
	switch {
	case path == project+"/releases/v1":
		answer(http.StatusOK, map[string]string{"tag_name": "v1"})
	case path == project+"/releases/v1/assets/links" && r.Method == http.MethodGet && first:
		answer(http.StatusOK, append([]map[string]string{}, s.links...))
	case path == project+"/releases/v1/assets/links" && r.Method == http.MethodPost:
		link := map[string]string{}
		if err := json.NewDecoder(r.Body).Decode(&link); err != nil || link["name"] == "" || link["url"] == "" {
			answer(http.StatusBadRequest, map[string]string{"message": "name is missing"})
			return
		}
		s.links = append(s.links, link)
		answer(http.StatusCreated, link)
	case path == project+"/packages" && first:
		list := []map[string]any{{"id": 4, "name": "deepspeed-old", "version": "v1"}}
		if len(s.files) > 0 {
			list = append(list, map[string]any{"id": 5, "name": "deepspeed", "version": "v1"})
		}
		answer(http.StatusOK, list)
	case path == project+"/packages/5/package_files" && first:
		answer(http.StatusOK, s.files)
	default:
		answer(http.StatusNotFound, map[string]string{"message": "404 Not found"})
	}
}

func (s *lab) put(r *http.Request, name string) (int, any) {
	s.mutex.Lock()
	busy := s.busy
	s.busy = true
	s.mutex.Unlock()
	if busy {
		return http.StatusInternalServerError, map[string]string{"message": "two files at once"}
	}
	data, err := io.ReadAll(r.Body)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.busy = false
	if err != nil || int64(len(data)) != r.ContentLength {
		return http.StatusBadRequest, map[string]string{"message": fmt.Sprint(err)}
	}
	s.files = append(s.files, labFile{name, hexOf(data), data})
	s.puts++
	return http.StatusCreated, map[string]string{"message": "201 Created"}
}
