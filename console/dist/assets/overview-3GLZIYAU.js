function e(){return null}export{e as default};
