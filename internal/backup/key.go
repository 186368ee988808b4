package backup

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
)

// Key encrypts or decrypts a backup, with a passphrase or with age's key pairs.
type Key struct {
	recipients []age.Recipient
	identities []age.Identity
}

// minPassphrase is the minimum length: a stored backup may be attacked for years.
const minPassphrase = 12

// NewPassphrase returns the key of a passphrase, for both directions.
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

// NewIdentities returns the key that decrypts for any of the identities in a file of age-keygen.
func NewIdentities(file io.Reader) (Key, error) {
	parsed, err := age.ParseIdentities(file)
	if err != nil {
		return Key{}, errors.New("the identity file holds no AGE-SECRET-KEY-… as age-keygen writes it") // the parser's error may quote the file
	}
	return Key{identities: parsed}, nil
}
