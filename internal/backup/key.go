package backup

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
)

// Key encrypts or decrypts a backup, by a passphrase or by age's key pairs.
type Key struct {
	recipients []age.Recipient
	identities []age.Identity
}

// minPassphrase is the least length: a backup may be attacked for years where it is kept.
const minPassphrase = 12

// NewPassphrase returns the key that a passphrase is, for both directions.
func NewPassphrase(passphrase string) (Key, error) {
	if len(passphrase) < minPassphrase {
		return Key{}, fmt.Errorf("the passphrase has %d characters: use %d or more", len(passphrase), minPassphrase)
	}
	return stretchPassphrase(passphrase, workFactor)
}

// workFactor is the logarithm of scrypt's rounds, age's own default: a second for each guess.
const workFactor = 18

func stretchPassphrase(passphrase string, factor int) (Key, error) {
	recipient, err := age.NewScryptRecipient(passphrase)
	if err != nil {
		return Key{}, fmt.Errorf("use the passphrase: %w", err)
	}
	recipient.SetWorkFactor(factor)
	identity, err := age.NewScryptIdentity(passphrase)
	if err != nil {
		return Key{}, fmt.Errorf("use the passphrase: %w", err)
	}
	return Key{recipients: []age.Recipient{recipient}, identities: []age.Identity{identity}}, nil
}

// NewRecipients returns the key that encrypts for the holders of age identities, each given as age1….
func NewRecipients(recipients []string) (Key, error) {
	parsed, err := age.ParseRecipients(strings.NewReader(strings.Join(recipients, "\n")))
	if err != nil {
		return Key{}, fmt.Errorf("understand the recipients: %w; age-keygen prints one as age1…", err)
	}
	return Key{recipients: parsed}, nil
}

// NewIdentities returns the key that decrypts what was encrypted for one of the identities of a file, as age-keygen writes it.
func NewIdentities(file io.Reader) (Key, error) {
	parsed, err := age.ParseIdentities(file)
	if err != nil {
		return Key{}, errors.New("the identity file holds no AGE-SECRET-KEY-… as age-keygen writes it") // not the parser's words, which may quote the file
	}
	return Key{identities: parsed}, nil
}
