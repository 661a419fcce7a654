// Prints a token for a Tidegate client. Needs nothing but Go 1.18.
//
// usage: go run mint.go KEY_FILE USER [DEVICE]
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"time"
)

// readKey returns the 32 bytes that the 64 hex digits in the file stand for, not the digits.
func readKey(path string) []byte {
	text, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		log.Fatal(err)
	}
	return key
}

func encode(part any) string {
	text, err := json.Marshal(part)
	if err != nil {
		log.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

func mint(key []byte, user string, device []string) string {
	now := time.Now().Unix()
	claims := map[string]any{"sub": user, "iat": now, "exp": now + 3600}
	if len(device) > 0 {
		claims["dev"] = device[0]
	}
	signed := encode(map[string]string{"alg": "HS256", "typ": "JWT"}) + "." + encode(claims)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(signed))
	return signed + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func main() {
	fmt.Println(mint(readKey(os.Args[1]), os.Args[2], os.Args[3:]))
}
