// Prints a token that is signed with a private key: RSA (RS256), P-256 (ES256) or Ed25519 (EdDSA). Needs nothing but Go 1.18.
//
// usage: go run sign.go PRIVATE_KEY_PEM KID USER [DEVICE]
package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log"
	"os"
	"time"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// readKey reads a private key as `openssl genpkey` writes it (PKCS #8).
func readKey(path string) any {
	text, err := os.ReadFile(path)
	check(err)
	block, _ := pem.Decode(text)
	if block == nil {
		log.Fatal("the file has no PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	check(err)
	return key
}

func algorithm(key any) string {
	switch key.(type) {
	case *rsa.PrivateKey:
		return "RS256"
	case *ecdsa.PrivateKey:
		return "ES256"
	default:
		return "EdDSA"
	}
}

func sign(key any, signed []byte) []byte {
	hash := sha256.Sum256(signed)
	switch key := key.(type) {
	case *rsa.PrivateKey:
		signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, hash[:])
		check(err)
		return signature
	case *ecdsa.PrivateKey:
		r, s, err := ecdsa.Sign(rand.Reader, key, hash[:])
		check(err)
		// A JWT has both numbers side by side, 32 bytes each, and not in ASN.1.
		return append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	default:
		return ed25519.Sign(key.(ed25519.PrivateKey), signed)
	}
}

func encode(part any) string {
	text, err := json.Marshal(part)
	check(err)
	return base64.RawURLEncoding.EncodeToString(text)
}

func mint(key any, kid, user string, device []string) string {
	now := time.Now().Unix()
	claims := map[string]any{"sub": user, "iat": now, "exp": now + 3600}
	if len(device) > 0 {
		claims["dev"] = device[0]
	}
	head := map[string]string{"alg": algorithm(key), "typ": "JWT", "kid": kid}
	signed := encode(head) + "." + encode(claims)
	return signed + "." + base64.RawURLEncoding.EncodeToString(sign(key, []byte(signed)))
}

func main() {
	fmt.Println(mint(readKey(os.Args[1]), os.Args[2], os.Args[3], os.Args[4:]))
}
