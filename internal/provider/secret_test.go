package provider

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// canary is a text that must come out nowhere.
const canary = "c4n4ry-8f1e77"

// secretFile writes a file that only its owner may use.
func secretFile(t testing.TB, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestHeadersAreRead(t *testing.T) {
	got, err := readHeaders(secretFile(t, "\ufeff# token of the shop\r\n\r\nauthorization: Bearer a:b  \r\nX-Two: 1\nx-two:2\n  Cookie : \n"))
	if err == nil || !strings.Contains(err.Error(), "secret:6: what stands before the colon is not the name of a header") {
		t.Errorf("got %v, %v", got, err)
	}
	got, err = readHeaders(secretFile(t, "\ufeff# token of the shop\r\n\r\nauthorization: Bearer a:b  \r\nX-Two: 1\nx-two:2\n"))
	if d := cmp.Diff(http.Header{"Authorization": {"Bearer a:b"}, "X-Two": {"1", "2"}}, got); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
}

func TestFilesWithSecretsAreRefused(t *testing.T) {
	good := "Authorization: Bearer " + canary + "\n"
	for _, tc := range []struct {
		name, body, headers, key string
		mode                     os.FileMode
	}{
		{"that the group may read", good, "its mode 0640 lets others than its owner use it: make it 0600", "its mode 0640 lets others", 0o640},
		{"that everyone may read", good, "its mode 0604 lets others", "its mode 0604 lets others", 0o604},
		{"that the group may write", good, "its mode 0620 lets others", "its mode 0620 lets others", 0o620},
		{"that are empty", "\n \n", "no header in it", "empty", 0o600},
		{"without a colon", canary, ":1: no colon, want `Name: value`", "not a key: 13 characters", 0o400},
		{"with a value alone", "# x\n" + canary + " x: y", ":2: what stands before the colon", "more than one line", 0o600},
		{"with a name alone", "X-" + canary + ":", ":1: a header without a value", "not a key", 0o600},
		{"with a control character", "A: " + canary + "\x01b", ":1: a control character in the value", "not a key", 0o600},
		{"with a header of the connection", "Host: " + canary, ":1: a header of the connection itself, which cannot be set: Host", "not a key", 0o600},
		{"with very many headers", strings.Repeat(good, maxHeaders+1), "more than 64 headers", "more than one line", 0o600},
		{"that are too large", strings.Repeat("#"+canary, 6000), "larger than 65536 bytes", "larger than 65536 bytes", 0o600},
		{"that are no base64", strings.Repeat("!", 44), "no colon", "not a key: not the base64 of 32 bytes", 0o600},
		{"that are zero", strings.Repeat("A", 43) + "=", "no colon", "not a key: all zero", 0o600},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := secretFile(t, tc.body)
			if err := os.Chmod(path, tc.mode); err != nil {
				t.Fatal(err)
			}
			_, err := readHeaders(path)
			checkSecretError(t, err, "headers_file "+path, tc.headers)
			_, err = readKey(path)
			checkSecretError(t, err, "key_file "+path, tc.key)
		})
	}
}

func checkSecretError(t *testing.T, err error, file, reason string) {
	t.Helper()
	if err == nil || !strings.HasPrefix(err.Error(), file) || !strings.Contains(err.Error(), reason) || strings.Contains(err.Error(), canary) {
		t.Errorf("want %q of %s and no secret, got %v", reason, file, err)
	}
}

func TestWhatIsNoFileHoldsNoSecret(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, reason := range map[string]string{
		t.TempDir(): "not a regular file", pipe: "not a regular file", filepath.Join(t.TempDir(), "gone"): "no such file",
	} {
		_, err := readHeaders(path)
		checkSecretError(t, err, "headers_file "+path, reason)
		_, err = readKey(path)
		checkSecretError(t, err, "key_file "+path, reason)
	}
}

func TestTheSecretPartsOfHeadersAreHidden(t *testing.T) {
	hide := hider(leastSecret, headerSecrets(http.Header{
		"Authorization": {"Basic YW5uOmgxZGQzbi1wYXNz"}, // ann:h1dd3n-pass
		"X-Auth":        {"Bearer t0k3n-t0k3n=="},
		"Cookie":        {`sid="c00kie-c00kie"; theme=dark`},
	}))
	for text, want := range map[string]string{
		"bad token t0k3n-t0k3n== here":            "bad token (hidden) here",
		"Bearer t0k3n-t0k3n==":                    "(hidden)",
		"got c00kie-c00kie":                       "got (hidden)",
		"user ann, password h1dd3n-pass":          "user ann, password (hidden)",
		"YW5uOmgxZGQzbi1wYXNz":                    "(hidden)",
		"t0k3n-t0k3n%3D%3D":                       "(hidden)",
		"Bearer of news, Basic, dark, theme, sid": "Bearer of news, Basic, dark, theme, sid",
	} {
		if got := hide(text); got != want {
			t.Errorf("%s\nwant %s\ngot  %s", text, want, got)
		}
	}
	// A short secret that begins a longer one must not leave the rest of it.
	if got := hider(3, []string{"ann", "ann-and-more"})("ann-and-more ann"); got != "(hidden) (hidden)" {
		t.Error(got)
	}
}
