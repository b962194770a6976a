package publish

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/dsbuild/dsbuild/index"
)

// bucket is a part of a bucket: the objects whose names begin with a prefix. A single request
// stores a wheel, so an object is whole or not there, and no parts are left behind.
type bucket struct {
	run    *run
	client *minio.Client
	name   string
	prefix string // "" or with a slash at the end
	// folders has the wheels that lie in a folder below the prefix: a copied index has such.
	folders map[string]string
}

// nameOf returns the name of the object for a file: beside its wheel if that is there.
func (b *bucket) nameOf(f File) string {
	stem, _, _ := strings.Cut(f.Name, ".whl")
	return path.Join(b.folders[stem+".whl"], f.Name)
}

// Objects opens the objects below s3://BUCKET/PREFIX, for an index of them.
func Objects(opt Options) (index.Objects, error) {
	b, err := newRun(opt).newBucket()
	if err != nil {
		return nil, err
	}
	return b, nil
}

// openBucket returns the place; if the bucket holds an index, one that writes its pages.
func (r *run) openBucket(ctx context.Context) (place, error) {
	b, err := r.newBucket()
	if err != nil {
		return nil, err
	}
	if err := index.HasObjects(ctx, b); errors.Is(err, fs.ErrNotExist) {
		return bucketPlace{eachFile{r, b}, b}, nil
	} else if err != nil {
		return nil, err
	}
	list, err := b.List(ctx)
	for _, o := range list {
		if strings.HasSuffix(o.Name, ".whl") {
			b.folders[path.Base(o.Name)] = path.Dir(o.Name)
		}
	}
	return indexBucket{bucketPlace{eachFile{r, b}, b}}, err
}

func (r *run) newBucket() (*bucket, error) {
	conf, err := r.awsSettings()
	if err != nil {
		return nil, err
	}
	at, err := url.Parse(conf.endpoint)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" || at.User != nil || strings.Trim(at.Path, "/") != "" {
		return nil, &TargetError{
			withoutLogin(conf.endpoint), "the endpoint of S3 must be https:// and a host",
			"correct AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or endpoint_url in ~/.aws/config",
		}
	}
	client, err := minio.New(at.Host, &minio.Options{
		Creds: r.awsCredentials(conf), Secure: at.Scheme == "https", Transport: r.http, Region: conf.region,
		MaxRetries: 1, // package httpclient does it
	})
	if err != nil {
		return nil, &TargetError{r.To.text, err.Error(), ""}
	}
	client.SetAppInfo("dsbuild", "")
	name, prefix, _ := r.To.Bucket()
	return &bucket{r, client, name, prefix, map[string]string{}}, nil
}

func (b *bucket) access() string {
	return "dsbuild takes AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the profile AWS_PROFILE of ~/.aws, or the machine's role"
}

// failed describes a failed request; an object that is not there is fs.ErrNotExist.
func (b *bucket) failed(object string, err error) error {
	where, code := "s3://"+b.name+"/"+b.prefix+object, statusOf(err)
	switch said := minio.ToErrorResponse(err).Code; {
	case err == nil:
		return nil
	case code == http.StatusNotFound && (said == minio.NoSuchKey || said == ""):
		return fmt.Errorf("%s: %w", where, fs.ErrNotExist)
	case code != 0:
		return fmt.Errorf("%s: it answers %d: %w", where, code, err)
	}
	return fmt.Errorf("%s: %w", where, err)
}

// lookFile compares an object by its ETag if that is the MD5, else by its bytes.
func (b *bucket) lookFile(ctx context.Context, f File) (state, error) {
	object := b.nameOf(f)
	info, err := b.client.StatObject(ctx, b.name, b.prefix+object, minio.StatObjectOptions{})
	if err != nil {
		if err = b.failed(object, err); errors.Is(err, fs.ErrNotExist) {
			return absent, nil
		}
		return absent, err
	}
	switch {
	case info.Size != f.Size:
		return other, nil
	case strings.Trim(info.ETag, `"`) == f.MD5:
		return same, nil
	}
	sum := sha256.New()
	if err := b.readOnce(ctx, object, func(in io.Reader) error { _, err := io.Copy(sum, in); return err }); err != nil {
		return absent, err
	}
	if hexSum(sum) != f.SHA256 {
		return other, nil
	}
	return same, nil
}

// readOnce reads an object by one request.
func (b *bucket) readOnce(ctx context.Context, object string, use func(io.Reader) error) error {
	in, _, _, err := minio.Core{Client: b.client}.GetObject(ctx, b.name, b.prefix+object, minio.GetObjectOptions{})
	if err != nil {
		return b.failed(object, err)
	}
	defer in.Close()
	return b.failed(object, use(in))
}

// putFile stores a file on the condition that there is no object of its name. A store that does
// not know the condition gets the file without it.
func (b *bucket) putFile(ctx context.Context, f File, sent func(int64)) error {
	err := b.putOnce(ctx, f, sent, true)
	if statusOf(err) == http.StatusNotImplemented {
		err = b.putOnce(ctx, f, sent, false)
	}
	if statusOf(err) != http.StatusPreconditionFailed && statusOf(err) != http.StatusConflict {
		return err
	}
	if taken := compareTaken(ctx, b.lookFile, f, err); !errors.Is(taken, err) {
		return taken
	}
	return b.putOnce(ctx, f, sent, true) // somebody else only tried to publish it
}

func (b *bucket) putOnce(ctx context.Context, f File, sent func(int64), isNew bool) error {
	return f.withBody(sent, func(in *body) error {
		opt := minio.PutObjectOptions{ContentType: contentType(f.Name), DisableMultipart: true}
		if isNew {
			opt.SetMatchETagExcept("*")
		}
		_, err := b.client.PutObject(ctx, b.name, b.prefix+b.nameOf(f), in, f.Size, opt)
		return b.failed(b.nameOf(f), err)
	})
}

// contentType returns the type of a file by its name.
func contentType(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".json":
		return "application/json"
	case ".metadata":
		return "text/plain; charset=utf-8"
	}
	return cmp.Or(mime.TypeByExtension(path.Ext(name)), "application/octet-stream")
}

// List implements index.Objects.
func (b *bucket) List(ctx context.Context) (all []index.Object, err error) {
	err = b.run.try(ctx, b.access(), func(ctx context.Context, _ int) error {
		all = nil
		for info := range b.client.ListObjects(ctx, b.name, minio.ListObjectsOptions{Prefix: b.prefix, Recursive: true}) {
			if info.Err != nil {
				return b.failed("", info.Err)
			}
			name := strings.TrimPrefix(info.Key, b.prefix)
			all = append(all, index.Object{Name: name, Size: info.Size, Version: info.ETag, Modified: info.LastModified})
		}
		return nil
	})
	return all, err
}

// Read implements index.Objects.
func (b *bucket) Read(ctx context.Context, name string, use func(io.Reader) error) error {
	return b.run.try(ctx, b.access(), func(ctx context.Context, _ int) error { return b.readOnce(ctx, name, use) })
}

// Put implements index.Objects.
func (b *bucket) Put(ctx context.Context, name string, text []byte) error {
	opt := minio.PutObjectOptions{ContentType: contentType(name), DisableMultipart: true, CacheControl: "no-cache"}
	return b.run.try(ctx, b.access(), func(ctx context.Context, _ int) error {
		_, err := b.client.PutObject(ctx, b.name, b.prefix+name, bytes.NewReader(text), int64(len(text)), opt)
		return b.failed(name, err)
	})
}

// Delete implements index.Objects.
func (b *bucket) Delete(ctx context.Context, name string) error {
	return b.run.try(ctx, b.access(), func(ctx context.Context, _ int) error {
		return b.failed(name, b.client.RemoveObject(ctx, b.name, b.prefix+name, minio.RemoveObjectOptions{}))
	})
}

// bucketPlace stores files, and METADATA beside each wheel, from which an index can be made
// without the wheel.
type bucketPlace struct {
	eachFile
	bucket *bucket
}

func (p bucketPlace) put(ctx context.Context, w Wheel, files []File, sent func(int64)) error {
	if err := p.bucket.Put(ctx, p.bucket.nameOf(w.main())+index.MetadataSuffix, w.main().metadata); err != nil {
		return err
	}
	return p.eachFile.put(ctx, w, files, sent)
}

// indexBucket is a bucket with an index.
type indexBucket struct{ bucketPlace }

func (p indexBucket) finish(ctx context.Context, _ []Wheel) (*Pages, error) {
	sum, err := index.WriteObjects(ctx, p.bucket, index.Options{GPUs: p.run.GPUs, Warn: p.run.Warn})
	return &Pages{sum.Written, sum.Removed}, err
}
