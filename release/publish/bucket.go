package publish

import (
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
	"path/filepath"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"gopkg.in/ini.v1"
)

// bucket is a part of a bucket: the objects whose names begin with a prefix. A single request
// stores a wheel, so an object is whole or not there, and no parts are left behind.
type bucket struct {
	client *minio.Client
	name   string
	prefix string // "" or with a slash at the end
}

const amazon = "https://s3.amazonaws.com"

// openBucket opens the store that the environment and ~/.aws name. A profile that the user named must exist.
func (r *run) openBucket() (place, error) {
	r.access = "dsbuild takes AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the profile AWS_PROFILE of ~/.aws, or the machine's role"
	named := cmp.Or(r.Getenv("AWS_PROFILE"), r.Getenv("AWS_DEFAULT_PROFILE"))
	profile, section := "default", "default"
	if named != "" && named != "default" {
		profile, section = named, "profile "+named
	}
	file := cmp.Or(r.Getenv("AWS_SHARED_CREDENTIALS_FILE"), filepath.Join(r.Home, ".aws", "credentials"))
	config := readINI(cmp.Or(r.Getenv("AWS_CONFIG_FILE"), filepath.Join(r.Home, ".aws", "config")))
	if profile != "default" && !config.HasSection(section) && !readINI(file).HasSection(profile) {
		return nil, r.refuse("correct AWS_PROFILE, or add the profile: aws configure --profile "+named,
			"AWS_PROFILE names the profile %s, which is neither in ~/.aws/config nor in ~/.aws/credentials", named)
	}
	said := config.Section(section)
	endpoint := cmp.Or(r.Getenv("AWS_ENDPOINT_URL_S3"), r.Getenv("AWS_ENDPOINT_URL"), said.Key("endpoint_url").String(), amazon)
	at, err := url.Parse(endpoint)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" || at.User != nil || strings.Trim(at.Path, "/") != "" {
		return nil, r.refuse("correct AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or endpoint_url in ~/.aws/config",
			"the endpoint of S3 must be https:// and a host, and not %s", withoutLogin(endpoint))
	}
	client, err := minio.New(at.Host, &minio.Options{
		Creds: r.awsCredentials(file, profile, endpoint), Secure: at.Scheme == "https", Transport: r.http,
		Region:     cmp.Or(r.Getenv("AWS_REGION"), r.Getenv("AWS_DEFAULT_REGION"), said.Key("region").String()),
		MaxRetries: 1, // package httpclient does it
	})
	if err != nil {
		return nil, r.refuse("", "%w", err)
	}
	client.SetAppInfo("dsbuild", "")
	return eachFile{r, &bucket{client, r.To.name, r.To.path}}, nil
}

// readINI reads a file of sections. One that is not there or cannot be read has none.
func readINI(file string) *ini.File {
	read, err := ini.LooseLoad(file)
	if err != nil {
		return ini.Empty()
	}
	return read
}

// awsCredentials takes credentials from where Amazon's own tools take them: the environment, the
// file of credentials (with its credential_process and SSO), the role of the machine or container.
func (r *run) awsCredentials(file, profile, endpoint string) *credentials.Credentials {
	if id, key := r.Getenv("AWS_ACCESS_KEY_ID"), r.Getenv("AWS_SECRET_ACCESS_KEY"); id != "" && key != "" {
		r.secrets.add(key, r.Getenv("AWS_SESSION_TOKEN"))
		return credentials.NewStaticV4(id, key, r.Getenv("AWS_SESSION_TOKEN"))
	}
	chain := []credentials.Provider{secretProvider{&credentials.FileAWSCredentials{Filename: file, Profile: profile}, r.secrets}}
	if endpoint == amazon || r.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") != "" {
		chain = append(chain, secretProvider{&credentials.IAM{}, r.secrets})
	}
	return credentials.NewChainCredentials(chain)
}

// secretProvider keeps the credentials of a provider out of messages.
type secretProvider struct {
	credentials.Provider
	secrets *secrets
}

// RetrieveWithCredContext implements credentials.Provider.
func (p secretProvider) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	v, err := p.Provider.RetrieveWithCredContext(cc)
	p.secrets.add(v.SecretAccessKey, v.SessionToken)
	return v, err
}

// failed describes a failed request; an object that is not there is fs.ErrNotExist.
func (b *bucket) failed(f File, err error) error {
	where, code := "s3://"+b.name+"/"+b.prefix+f.Name, statusOf(err)
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
	info, err := b.client.StatObject(ctx, b.name, b.prefix+f.Name, minio.StatObjectOptions{})
	if err != nil {
		if err = b.failed(f, err); errors.Is(err, fs.ErrNotExist) {
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
	in, _, _, err := minio.Core{Client: b.client}.GetObject(ctx, b.name, b.prefix+f.Name, minio.GetObjectOptions{})
	if err != nil {
		return absent, b.failed(f, err)
	}
	defer in.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, in); err != nil {
		return absent, b.failed(f, err)
	}
	if hexSum(sum) != f.SHA256 {
		return other, nil
	}
	return same, nil
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
	if taken := compareTaken(ctx, b, f, err); !errors.Is(taken, err) {
		return taken
	}
	return b.putOnce(ctx, f, sent, true) // somebody else only tried to publish it
}

func (b *bucket) putOnce(ctx context.Context, f File, sent func(int64), isNew bool) error {
	return f.withBody(sent, func(in *body) error {
		opt := minio.PutObjectOptions{ContentType: cmp.Or(mime.TypeByExtension(path.Ext(f.Name)), "application/octet-stream"), DisableMultipart: true}
		if isNew {
			opt.SetMatchETagExcept("*")
		}
		_, err := b.client.PutObject(ctx, b.name, b.prefix+f.Name, in, f.Size, opt)
		return b.failed(f, err)
	})
}
