package devices

import "golang.org/x/crypto/bcrypt"

// Hash returns the cheapest hash of a password.
func Hash(password string) (string, error) {
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	return string(hash), err
}
